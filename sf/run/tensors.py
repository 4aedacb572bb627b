"""Whether a simulator in tensors stays on its device for acting and learning, and what such a run is like."""

from __future__ import annotations

from dataclasses import replace

from sf.config import Config, samples_per_iteration
from sf.errors import ConfigError
from sf.spaces import EnvInfo

DEFAULT_COPIES = 1024
"""Copies in one simulator where the user leaves that open."""


def with_tensors(config: Config, info: EnvInfo, rank_is_alone: bool) -> Config:
    """The configuration of a run in one process, if the flags ask for that or leave it open on an accelerator.

    Raises:
        ConfigError: it was asked for, and other flags speak against it.
    """
    wanted, run = config.rollout.vectorization, config.run
    if wanted != "tensors" and not (wanted == "auto" and (run.device == "gpu" or run.serial_mode)):
        return config
    if obstacles := _obstacles(config, info, rank_is_alone):
        if wanted == "auto":
            return config
        raise ConfigError(
            [
                "vectorization=tensors steps, acts and learns in one process, for one policy. "
                f"{' and '.join(obstacles)} does not fit. Leave it out, or use --vectorization="
                f"{'none' if config.faults.on_nonfinite == 'drop' else 'native'}."
            ]
        )
    rollout, inference = config.rollout, config.inference
    copies = rollout.num_envs_per_worker
    if copies is None and (run.device == "gpu" or not run.serial_mode):
        copies = DEFAULT_COPIES  # other serial runs have as many as with other environments
    return replace(
        config,
        run=replace(run, serial_mode=True, async_rl=run.async_rl and not run.serial_mode and wanted == "tensors"),
        rollout=replace(
            rollout,
            vectorization="tensors",
            num_workers=1,
            worker_num_splits=1,
            num_envs_per_worker=copies,
        ),
        inference=replace(inference, policy_workers_per_policy=1),
    )


def _obstacles(config: Config, info: EnvInfo, rank_is_alone: bool) -> list[str]:
    """The flags that do not fit, and what else does not."""
    rollout, run, learner = config.rollout, config.run, config.learner
    copies = rollout.num_envs_per_worker or DEFAULT_COPIES
    is_given = learner.batch_size is not None and learner.num_batches_per_epoch is not None
    facts = {
        f"num_policies={run.num_policies}": run.num_policies > 1,
        f"num_learners={config.learner.num_learners}": config.learner.num_learners > 1,
        f"num_workers={rollout.num_workers}": (rollout.num_workers or 1) > 1,
        f"worker_num_splits={rollout.worker_num_splits}": (rollout.worker_num_splits or 1) > 1,
        f"policy_workers_per_policy={config.inference.policy_workers_per_policy}": (
            config.inference.policy_workers_per_policy not in (None, 1)
        ),
        "on_nonfinite=drop": config.faults.on_nonfinite == "drop",
        f"{info.num_agents} agents in each copy": info.num_agents > 1,
        "a start by torchrun": not rank_is_alone,
        f"replay={config.replay.replay}": config.replay.replay == "uniform",
        f"a dataset of {samples_per_iteration(config) if is_given else 0} transitions, where {copies} copies make "
        f"{copies * rollout.steps},": is_given and samples_per_iteration(config) % (copies * rollout.steps) > 0,
    }
    return [fact for fact, is_true in facts.items() if is_true]
