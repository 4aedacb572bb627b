"""The policy lag to expect, from the sizes of a run alone."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from sf.config import Config, sync_ratio


class ExpectedLag(NamedTuple):
    """In optimizer steps, over a whole run."""

    min: float
    avg: float
    max: float
    is_exact: bool
    """In synchronous and in serial mode. Else it is the lag while training holds the run back, and less while sampling
    does. A worker that stands still in the middle of a trajectory, for want of a core, makes a larger one."""

    def __str__(self) -> str:
        """For the console."""
        return f"min {self.min:.4g}, avg {self.avg:.4g}, max {self.max:.4g}"


def expected_lag(config: Config, num_agents: int, batches_held: Fraction) -> ExpectedLag:
    """The lag of a run with K optimizer steps on each batch.

    Synchronous mode: the n-th step on a batch has lag n, so 0 to K - 1. Serial mode trains on all q batches of a
    sampling round before the next one, so 0 to q K - 1. Asynchronous mode, while training holds the run back: the slots
    hold H batches, and the one that is collected now is trained on after the H - 1 that wait, so every lag is
    (H - 1) K larger.

    Args:
        config: resolved.
        num_agents: in one environment.
        batches_held: H, in all slots when sampling pauses.
    """
    steps = config.learner.num_epochs * config.learner.num_minibatches
    if config.run.serial_mode or not config.run.async_rl:
        last = float(max(Fraction(1), 1 / sync_ratio(config, num_agents)) * steps) - 1
        return ExpectedLag(0.0, last / 2, last, is_exact=True)
    waiting = float(max(Fraction(0), batches_held - 1) * steps)
    if (bound := config.learner.bound_policy_lag) is not None:
        waiting = min(waiting, max(0.0, bound - (steps - 1)))
    if (target := config.learner.target_policy_lag) is not None:
        waiting = min(waiting, max(0.0, target - (steps - 1) / 2))
    return ExpectedLag(waiting, waiting + (steps - 1) / 2, waiting + steps - 1, is_exact=False)
