"""Fills in what the user left open, from the environment and the number of cores."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from sf.config.roles import Config, LearnerConfig, RolloutConfig
from sf.config.sizes import rows_per_group, samples_per_round
from sf.errors import ConfigError

if TYPE_CHECKING:
    from sf.envs.step_time import StepTime
    from sf.spaces import EnvInfo

DEFAULT_NUM_ENVS = 64
"""Environments over all workers, whatever the machine: learning must not depend on the number of cores."""
MOST_MINIBATCHES, LEAST_MINIBATCH = 8, 256
"""What was searched for, see docs/configuration.md: more minibatches make more lag, smaller ones more noise."""
MAX_DEFAULT_WORKERS = 32
LONGEST_FIRST_ROUND_S = 10.0
"""In which all environments are to be made, reset and stepped once through a trajectory; where 64 of them take longer,
there are fewer."""
LEAST_GROUP_S = 1e-4
"""A group that takes less time for a step costs more to serve than to step; then fewer, larger ones are better."""


def wants_step_time(config: Config) -> bool:
    """Whether sizes follow from how long a step takes; where runs repeat, only from the cores."""
    return config.run.async_rl and not config.run.serial_mode and config.rollout.num_envs_per_worker is None


def resolve(config: Config, info: EnvInfo, cores: int, step: StepTime | None = None) -> Config:
    """The configuration without None: sizes follow from the environment and the cores, a seed is drawn.

    Args:
        config: what the user has given.
        info: what the environment looks like.
        cores: that the run may use.
        step: how long the environment takes for a step and to begin, if sizes are to follow from that.

    Raises:
        ConfigError: the batch size cannot be derived.
    """
    if config.inference.policy_workers_per_policy is None:
        waits = step is not None and step.waits  # then there are many workers with few environments each
        acting = None if waits else _acting(config, info, cores, step)
        config = acting or _sized(_with_inference(config, 1), cores, step)
    else:
        config = _sized(config, cores, step, least=max(1, config.inference.policy_workers_per_policy))
    seed = secrets.randbits(32) if config.run.seed is None else config.run.seed
    config = replace(config, run=replace(config.run, seed=seed))
    return replace(config, learner=_with_minibatches(config, info))


def _with_minibatches(config: Config, info: EnvInfo) -> LearnerConfig:
    """With the size and the number of minibatches: those of one sampling round, where neither says more."""
    learner, samples = config.learner, samples_per_round(config, info.num_agents)
    if learner.num_batches_per_epoch is None:
        size = learner.batch_size
        number = _number_of_minibatches(config, samples) if size is None else _number_of_size(size, config, samples)
        learner = replace(learner, num_batches_per_epoch=number)
    if learner.batch_size is not None:
        return learner
    batch_size = samples / learner.num_minibatches
    if batch_size.denominator != 1:
        raise ConfigError([_batch_size_problem(replace(config, learner=learner), info)])
    return replace(learner, batch_size=int(batch_size))


def _number_of_minibatches(config: Config, samples: Fraction) -> int:
    """The most that are equal and large enough; those of a policy with memory are whole trajectories of a learner."""
    trajectories = samples / config.rollout.rollout / config.learner.num_learners
    whole = trajectories if config.model.use_rnn else samples
    most = min(MOST_MINIBATCHES, int(samples / LEAST_MINIBATCH))
    return next((number for number in range(most, 1, -1) if (whole / number).denominator == 1), 1)


def _number_of_size(size: int, config: Config, samples: Fraction) -> int:
    """How many of this size are nearest to a sampling round and make whole trajectories, or whole rounds if they must.

    The nearest one if none do; it is refused when everything is known.
    """
    rollout, nearest = config.rollout.rollout, max(1, round(samples / size))

    def fits(number: int) -> bool:
        dataset = Fraction(number * size)
        return dataset % rollout == 0 and (config.run.async_rl or dataset % samples == 0)

    numbers = sorted(range(1, max(2 * nearest, rollout) + 1), key=lambda number: abs(number * size - samples))
    return next(filter(fits, numbers), nearest)


def _with_inference(config: Config, policy_workers_per_policy: int) -> Config:
    return replace(config, inference=replace(config.inference, policy_workers_per_policy=policy_workers_per_policy))


def _acting(config: Config, info: EnvInfo, cores: int, step: StepTime | None) -> Config | None:
    """With rollout workers that act for themselves, if that suits: more of them where their groups are too large."""
    for least in range(1, min(cores, MAX_DEFAULT_WORKERS) + 1):
        sized = _sized(_with_inference(config, 0), cores, step, least)
        if suits_acting(sized, info):
            return sized
    return None


def suits_acting(config: Config, info: EnvInfo) -> bool:
    """Whether rollout workers that act for themselves, with the sizes of `config`, suit the rest of it.

    They are faster than an inference process where the network is small and the CPU acts.
    """
    from sf.config.written_out import is_small, is_written_out  # imports numpy, which is there since there is `info`

    if config.run.device != "cpu" or config.run.serial_mode:
        return False
    rollout = config.rollout
    assert rollout.num_workers is not None
    if rollout.num_workers * config.groups_per_worker % config.learner.num_learners:
        return False  # two groups per worker may still be shared evenly
    return is_written_out(info, config.model) and is_small(info, config.model, rows_per_group(config, info.num_agents))


def _sized(config: Config, cores: int, step: StepTime | None, least: int = 1) -> Config:
    """With workers, environments and groups; `least` workers if the environments suffice for them."""
    splits = config.groups_per_worker
    least, most = (1, 1) if config.run.serial_mode else (least, max(least, _most_workers(splits, cores, step)))
    rollout = _fill_workers(config.rollout, splits, least, most, config.learner.num_learners)
    if step is not None and config.rollout.num_envs_per_worker is None:
        env_s = step.start_s + rollout.rollout * step.wall_s
        rollout = _in_time(rollout, env_s, may_have_one=config.rollout.worker_num_splits is None)
    return replace(config, rollout=rollout)


def _most_workers(splits: int, cores: int, step: StepTime | None) -> int:
    """One for each core, more for environments that mostly wait, and fewer for those that hardly take any time."""
    most: float = cores
    if step is not None:
        most = min(cores * step.waiting, DEFAULT_NUM_ENVS * step.wall_s / LEAST_GROUP_S / splits)
    return max(1, min(round(most), MAX_DEFAULT_WORKERS))


def _fill_workers(rollout: RolloutConfig, splits: int, least: int, most: int, num_learners: int) -> RolloutConfig:
    workers, envs = rollout.num_workers, rollout.num_envs_per_worker
    unit = num_learners // math.gcd(num_learners, splits)  # of workers, so that learners share groups evenly
    if workers is None:
        # Every group the same size, and the same total on every machine: as many workers as divide it evenly.
        groups = -(-DEFAULT_NUM_ENVS // splits)
        most = max(most, unit)
        if envs is not None:
            most = max(1, min(most, DEFAULT_NUM_ENVS // envs))
        sizes = [*range(most, least - 1, -1), *range(most + 1, groups + 1), *range(least - 1, 0, -1)]
        fitting = [w for w in sizes if w % unit == 0 and (envs is not None or groups % w == 0)]
        workers = fitting[0] if fitting else max(unit, most // unit * unit)
    if envs is None:
        evenly = splits if rollout.num_workers is None or rollout.worker_num_splits else 2  # with each way of acting
        envs = -(-DEFAULT_NUM_ENVS // (workers * evenly)) * evenly
    return replace(rollout, num_workers=workers, num_envs_per_worker=envs, worker_num_splits=splits)


def _in_time(rollout: RolloutConfig, env_s: float, may_have_one: bool) -> RolloutConfig:
    """With fewer environments where a worker would not get through its first trajectories in time.

    Args:
        rollout: without None.
        env_s: seconds that one environment takes for its first trajectory.
        may_have_one: whether two groups of one environment may become one of one.
    """
    envs, splits = rollout.num_envs_per_worker, rollout.worker_num_splits
    assert envs is not None
    assert splits is not None
    while envs > splits and envs * env_s > LONGEST_FIRST_ROUND_S:
        envs = max(splits, envs // 2 // splits * splits)
    if may_have_one and envs == splits == 2 and envs * env_s > LONGEST_FIRST_ROUND_S:
        envs = splits = 1
    return replace(rollout, num_envs_per_worker=envs, worker_num_splits=splits)


def _batch_size_problem(config: Config, info: EnvInfo) -> str:
    rollout, learner = config.rollout, config.learner
    samples = samples_per_round(config, info.num_agents)
    other = ", or a --num_batches_per_epoch that divides them" if samples.denominator == 1 else ""
    return (
        f"num_batches_per_epoch={learner.num_batches_per_epoch} does not divide the {float(samples):.10g} transitions "
        f"of a sampling round ({rollout.num_workers} workers x {rollout.num_envs_per_worker} environments x "
        f"{info.num_agents} agents x rollout={rollout.rollout}, over {config.run.num_policies} policies), so there is "
        f"no default for batch_size. Give --batch_size{other}."
    )
