"""The policy lag to expect, from the sizes of a run alone."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from sf.config import Config, limit_of_drawn_lag, rows_per_group, sync_ratio, trajectories_per_dataset


class ExpectedLag(NamedTuple):
    """In optimizer steps, over a whole run."""

    min: float
    avg: float
    max: float
    is_exact: bool
    """In synchronous mode, and in serial mode where rounds and batches end together. In asynchronous mode it is the lag
    while training holds the run back, and less while sampling does. A worker that stands still in the middle of a
    trajectory, for want of a core, makes a larger one."""

    def __str__(self) -> str:
        """For the console."""
        return f"min {self.min:.4g}, avg {self.avg:.4g}, max {self.max:.4g}"


def expected_lag(config: Config, num_agents: int, batches_held: Fraction) -> ExpectedLag | None:
    """The lag of a run with K optimizer steps on each batch; None with replay, which draws transitions of any age.

    Synchronous mode: the n-th step on a batch has lag n, so 0 to K - 1. Serial mode trains on all q batches of a
    sampling round before the next one, so 0 to q K - 1. Asynchronous mode, while training holds the run back: the slots
    hold H batches, and the one that is collected now is trained on after the H - 1 that wait, so every lag is
    (H - 1) K larger. A slot that reaches into w > 1 batches is free after the last of them, so it waits for H - w
    batches, and lags rise by w K - 1 while it is trained on.

    Args:
        config: resolved.
        num_agents: in one environment.
        batches_held: H, in all slots when sampling pauses.
    """
    if config.replay.replay != "none":
        return None
    learner = config.learner
    steps = learner.steps_per_batch
    if not config.run.async_rl:
        return ExpectedLag(0.0, (steps - 1) / 2, steps - 1.0, is_exact=learner.target_kl == 0)
    if config.takes_turns:
        return _serial(config, 1 / sync_ratio(config, num_agents), batches_held, steps)
    share = trajectories_per_dataset(config) // learner.num_learners
    width = max(Fraction(1), Fraction(rows_per_group(config, num_agents), share))
    rise = float(width * steps) - 1
    waiting = float(max(Fraction(0), batches_held - width) * steps)
    if (bound := learner.lag_bound) is not None:
        waiting = min(waiting, max(0.0, bound - rise))
    if (target := learner.target_policy_lag) is not None:
        waiting = min(waiting, max(0.0, target - rise / 2))
    return ExpectedLag(math.floor(waiting), waiting + rise / 2, math.ceil(waiting + rise), is_exact=False)


def _serial(config: Config, batches: Fraction, batches_held: Fraction, steps: int) -> ExpectedLag:
    """Lag of q `batches` in a sampling round. Sampling goes on between them if the slots hold more than one round."""
    learner, per_round = config.learner, max(Fraction(1), batches)
    average, most = float(per_round * steps - 1) / 2, math.ceil(per_round) * steps - 1.0
    end_together = 1 in (batches.numerator, batches.denominator) and (batches <= 1 or batches_held <= batches)
    is_limited = learner.bound_policy_lag is not None or learner.target_policy_lag is not None
    if end_together and not is_limited and config.run.num_policies == 1:
        return ExpectedLag(0.0, average, most, is_exact=learner.target_kl == 0)
    most = max(most, math.ceil(batches_held) * steps - 1.0)
    if (bound := learner.lag_bound) is not None:
        average, most = min(average, bound), min(most, bound)
    if (target := learner.target_policy_lag) is not None:
        average = min(average, target)
    return ExpectedLag(0.0, average, most, is_exact=False)


def forecast(config: Config, num_agents: int, batches_held: Fraction) -> str:
    """The sentence before a run; see `expected_lag`."""
    lag = expected_lag(config, num_agents, batches_held)
    if lag is None:
        limit = limit_of_drawn_lag(config.learner, config.replay)
        ages = "any age" if limit is None else f"up to {limit} optimizer steps"
        return f"Policy lag is not forecast: replay={config.replay.replay} draws transitions of {ages}."
    steps = config.learner.steps_per_batch
    age = f" (avg {lag.avg / steps:.2g} batches of {steps} steps)" if steps > 1 else ""
    return f"Expected policy lag: {lag}{age}{'' if lag.is_exact else _condition(config)}"


def _condition(config: Config) -> str:
    if config.run.async_rl and not config.takes_turns:
        return " while training holds the run back, else less on average"
    return ", or less where target_kl ends a batch early" if config.learner.target_kl > 0 else ", roughly"
