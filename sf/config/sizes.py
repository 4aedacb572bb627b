"""The sizes that follow from a configuration, in the symbols of the policy-lag page.

W = `num_workers`, N = `num_envs_per_worker`, R = `rollout`, a = agents in one environment, E = `num_epochs`,
B = `num_batches_per_epoch`, mb = `batch_size`. All of them must be filled in, see `sf.run.sizes`.
"""

from __future__ import annotations

from fractions import Fraction

from sf.config.learner import LearnerConfig
from sf.config.roles import ReplayConfig
from sf.config.whole import Config


def samples_per_round(config: Config, num_agents: int) -> Fraction:
    """S = W N a R, the transitions of one trajectory from every agent, as the share of one policy."""
    rollout = config.rollout
    if rollout.num_workers is None or rollout.num_envs_per_worker is None:
        raise ValueError("num_workers and num_envs_per_worker are None; sizes follow from a resolved configuration.")
    total = rollout.num_workers * rollout.num_envs_per_worker * num_agents * rollout.steps
    return Fraction(total, config.num_shares)


def envs_per_group(config: Config) -> int:
    """N / splits, the environments that a worker steps before it asks for their actions."""
    if config.rollout.num_envs_per_worker is None:
        raise ValueError("num_envs_per_worker is None; sizes follow from a resolved configuration.")
    return config.rollout.num_envs_per_worker // config.groups_per_worker


def rows_per_group(config: Config, num_agents: int) -> int:
    """N a / splits, the observations that ask for their actions together."""
    return envs_per_group(config) * num_agents


def samples_per_iteration(config: Config) -> int:
    """Mb B, the transitions that one training iteration takes."""
    learner = config.learner
    if learner.batch_size is None:
        raise ValueError("batch_size is None; sizes follow from a resolved configuration.")
    return learner.batch_size * learner.num_minibatches


def sync_ratio(config: Config, num_agents: int) -> Fraction:
    """Mb B / S, the sampling rounds in one training iteration; synchronous mode needs a positive integer."""
    return samples_per_iteration(config) / samples_per_round(config, num_agents)


def steps_per_round(config: Config, num_agents: int) -> Fraction:
    """F = E S / mb, the optimizer steps made on one sampling round; policy lag grows with it.

    In synchronous mode with one round per iteration the largest lag is F - 1 and the mean is (F - 1) / 2.
    """
    steps_per_iteration = config.learner.steps_per_batch
    return steps_per_iteration / sync_ratio(config, num_agents)


def trajectories_per_dataset(config: Config) -> int:
    """Trajectories, of all policies together, from which each learner takes its own for one training iteration."""
    return samples_per_iteration(config) * config.num_shares // config.rollout.steps


def limit_of_drawn_lag(learner: LearnerConfig, replay: ReplayConfig) -> int | None:
    """The largest lag of a transition that is trained on; None for no limit.

    It is `bound_policy_lag`, or `max_staleness` where that is smaller and there is a buffer.
    """
    limits = [] if learner.lag_bound is None else [learner.lag_bound]
    if replay.replay != "none" and replay.max_staleness >= 0:
        limits.append(replay.max_staleness)
    return min(limits, default=None)


def least_lag_bound(steps: int, trajectories: int, rows: int) -> int:
    """The smallest largest lag with which a batch can be trained on: K - 1, or more where a slot reaches into several.

    Args:
        steps: K, optimizer steps on one batch.
        trajectories: of one batch of one learner.
        rows: trajectories in one slot.
    """
    batches = 1 if trajectories % rows == 0 else -(-rows // trajectories) + 1
    return batches * steps - 1
