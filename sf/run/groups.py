"""How many workers, environments and groups a run has, where the user leaves that open."""

from __future__ import annotations

import math
from dataclasses import replace

from sf.config import (
    Config,
    RolloutConfig,
)
from sf.config.roles import DEFAULT_ROLLOUT
from sf.envs.step_time import StepTime
from sf.envs.vectorization import PAYS_FROM
from sf.run.updates import profits_from_long_trajectories
from sf.spaces import EnvInfo

DEFAULT_NUM_ENVS = 64
"""Environments over all workers, on any machine: learning must not depend on the number of cores."""


LEAST_ENVS = 8
"""Those with trajectories of any length, so that there is something to do for several cores."""


MAX_DEFAULT_WORKERS = 32


LONGEST_FIRST_ROUND_S = 10.0
"""Limit for making and resetting all environments and stepping them once through a trajectory. Where 64 of them take
longer, there are fewer."""


LEAST_GROUP_S = 1e-4
"""A group that takes less time for a step costs more to serve than to step; then fewer, larger ones are better."""


def _num_envs(config: Config, info: EnvInfo, step: StepTime | None) -> int:
    """Environments over all workers, where the user leaves that open: fewer of those with long trajectories.

    So a batch keeps its size. Those that mostly wait are many at once, unless long trajectories were chosen for them.
    """
    fewer = min(DEFAULT_NUM_ENVS, DEFAULT_NUM_ENVS * DEFAULT_ROLLOUT // config.rollout.steps)
    if profits_from_long_trajectories(config, info):
        return max(1, fewer)
    if config.rollout.num_envs_per_worker is not None or (step is not None and step.waits):
        return DEFAULT_NUM_ENVS
    return max(LEAST_ENVS, fewer)


def sized(config: Config, info: EnvInfo, cores: int, step: StepTime | None, least: int = 1) -> Config:
    """With workers, environments and groups; `least` workers if the environments suffice for them."""
    splits = config.groups_per_worker
    least, most = (1, 1) if config.run.serial_mode else (least, max(least, _most_workers(splits, cores, step)))
    rollout = _fill_workers(
        config.rollout, _num_envs(config, info, step), splits, least, most, config.learner.num_learners
    )
    if step is not None and config.rollout.num_envs_per_worker is None:
        rollout = _in_time(rollout, step, may_have_one=config.rollout.worker_num_splits is None)
    return replace(config, rollout=rollout)


def with_one_simulator(config: Config) -> Config:
    """All copies of a learner step as one, where the user leaves that open: more of them in a step cost little."""
    rollout = config.rollout
    learners, acting = config.learner.num_learners, config.inference.policy_workers_per_policy or 1
    workers = rollout.num_workers or -(-acting // learners) * learners
    splits = rollout.worker_num_splits or 1
    return replace(config, rollout=replace(rollout, num_workers=workers, worker_num_splits=splits))


def _most_workers(splits: int, cores: int, step: StepTime | None) -> int:
    """One for each core, more for environments that mostly wait, and fewer for those that hardly take any time.

    Environments that step as one wait together, so more workers would only make their groups smaller.
    """
    most: float = cores
    if step is not None:
        most = min(cores * step.waiting, DEFAULT_NUM_ENVS * step.wall_s / LEAST_GROUP_S / splits)
        if step.copies > 1:
            most = min(most, cores, most_that_pay(splits))
    return max(1, min(round(most), MAX_DEFAULT_WORKERS))


def most_that_pay(splits: int) -> int:
    """Workers whose groups are still large enough to step as one."""
    return max(1, DEFAULT_NUM_ENVS // (PAYS_FROM * splits))


def _fill_workers(
    rollout: RolloutConfig, num_envs: int, splits: int, least: int, most: int, num_learners: int
) -> RolloutConfig:
    workers, envs = rollout.num_workers, rollout.num_envs_per_worker
    unit = num_learners // math.gcd(num_learners, splits)  # of workers, so that learners share groups evenly
    if workers is None:
        # Every group the same size, and the same total on every machine: as many workers as divide it evenly.
        groups = -(-num_envs // splits)
        most = max(most, unit)
        if envs is not None:
            most = max(1, min(most, num_envs // envs))
        sizes = [*range(most, least - 1, -1), *range(most + 1, groups + 1), *range(least - 1, 0, -1)]
        fitting = [w for w in sizes if w % unit == 0 and (envs is not None or groups % w == 0)]
        workers = fitting[0] if fitting else max(unit, most // unit * unit)
    if envs is None:
        evenly = splits if rollout.num_workers is None or rollout.worker_num_splits else 2  # with each way of acting
        envs = -(-num_envs // (workers * evenly)) * evenly
    return replace(rollout, num_workers=workers, num_envs_per_worker=envs, worker_num_splits=splits)


def _in_time(rollout: RolloutConfig, step: StepTime, may_have_one: bool) -> RolloutConfig:
    """With fewer environments where a worker would not get through its first trajectories in time.

    Args:
        rollout: without None.
        step: how long one environment takes for a step and to begin.
        may_have_one: whether two groups of one environment may become one of one.
    """
    envs, splits = rollout.num_envs_per_worker, rollout.worker_num_splits
    assert envs is not None
    assert splits is not None
    if step.copies > 1:
        # Each group takes the whole time to begin, whatever its size, so at least half of the limit is left for steps.
        env_s, least = rollout.steps * step.wall_s, splits * PAYS_FROM
        limit_s = max(LONGEST_FIRST_ROUND_S - splits * step.start_s, LONGEST_FIRST_ROUND_S / 2)
    else:
        env_s, least, limit_s = step.start_s + rollout.steps * step.wall_s, splits, LONGEST_FIRST_ROUND_S
    while envs > least and envs * env_s > limit_s:
        envs = max(least, envs // 2 // splits * splits)
    if may_have_one and envs == splits == 2 and envs * env_s > limit_s:
        envs = splits = 1
    return replace(rollout, num_envs_per_worker=envs, worker_num_splits=splits)
