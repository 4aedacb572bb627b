"""Fills in what the user left open, from the environment and the number of cores."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from sf.config.roles import Config, RolloutConfig
from sf.config.sizes import samples_per_round
from sf.errors import ConfigError

if TYPE_CHECKING:
    from sf.spaces import EnvInfo

DEFAULT_NUM_ENVS = 64
"""Environments over all workers, whatever the machine: learning must not depend on the number of cores."""
MAX_DEFAULT_WORKERS = 32


def resolve(config: Config, info: EnvInfo, cores: int) -> Config:
    """The configuration without None: workers and environments, batch size, and a seed drawn if there is none.

    Raises:
        ConfigError: the batch size cannot be derived.
    """
    rollout = _fill_workers(config.rollout, cores, config.run.serial_mode)
    seed = secrets.randbits(32) if config.run.seed is None else config.run.seed
    config = replace(config, rollout=rollout, run=replace(config.run, seed=seed))
    if config.learner.batch_size is not None:
        return config
    batch_size = samples_per_round(config, info.num_agents) / config.learner.num_batches_per_epoch
    if batch_size.denominator != 1:
        raise ConfigError([_batch_size_problem(config, info)])
    return replace(config, learner=replace(config.learner, batch_size=int(batch_size)))


def _fill_workers(rollout: RolloutConfig, cores: int, serial: bool) -> RolloutConfig:
    workers, envs = rollout.num_workers, rollout.num_envs_per_worker
    most = 1 if serial else max(1, min(cores, MAX_DEFAULT_WORKERS))
    if workers is None and envs is None:
        # Every group the same size, and the same total on every machine: as many workers as divide it evenly.
        groups = -(-DEFAULT_NUM_ENVS // rollout.worker_num_splits)
        workers = next(w for w in range(most, 0, -1) if groups % w == 0)
        envs = groups // workers * rollout.worker_num_splits
    elif workers is None and envs is not None:
        workers = max(1, min(most, DEFAULT_NUM_ENVS // envs))
    elif workers is not None and envs is None:
        envs = -(-DEFAULT_NUM_ENVS // (workers * rollout.worker_num_splits)) * rollout.worker_num_splits
    return replace(rollout, num_workers=workers, num_envs_per_worker=envs)


def _batch_size_problem(config: Config, info: EnvInfo) -> str:
    rollout, learner = config.rollout, config.learner
    samples = samples_per_round(config, info.num_agents)
    return (
        f"num_batches_per_epoch={learner.num_batches_per_epoch} does not divide the {float(samples):.10g} transitions "
        f"of a sampling round ({rollout.num_workers} workers x {rollout.num_envs_per_worker} environments x "
        f"{info.num_agents} agents x rollout={rollout.rollout}, over {config.run.num_policies} policies), so there is "
        "no default for batch_size. Give --batch_size, or a --num_batches_per_epoch that divides them."
    )
