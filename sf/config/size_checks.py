"""Sizes that must divide each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sf.config.sizes import (
    samples_per_iteration,
    samples_per_round,
    sync_ratio,
    trajectories_per_dataset,
)
from sf.config.whole import Config

if TYPE_CHECKING:
    from sf.spaces import EnvInfo


def round_problems(config: Config, info: EnvInfo) -> list[str]:
    """Sizes that depend on the number of agents; row A11 of the policy-lag contract."""
    rollout, learner, policies = config.rollout, config.learner, config.num_shares
    ratio = sync_ratio(config, info.num_agents)
    if (config.run.async_rl and not config.overlaps) or ratio.denominator == 1:
        return []
    samples, per_round = samples_per_iteration(config), samples_per_round(config, info.num_agents)
    agents = f" x {info.num_agents} agents" if info.num_agents > 1 else ""
    share = f" / num_policies={policies}" if policies > 1 else ""
    fitting = per_round / learner.num_minibatches
    advice = f"use --batch_size={fitting}" if fitting.denominator == 1 else "change --num_batches_per_epoch"
    mode, other = "Synchronous mode trains", "collect asynchronously with --async_rl=True"
    if config.overlaps:
        mode, other = "Here a simulator in tensors trains", "use --vectorization=native"
    return [
        f"batch_size={learner.batch_size} x num_batches_per_epoch={learner.num_batches_per_epoch} = {samples} "
        f"transitions in a training iteration, but num_workers={rollout.num_workers} x num_envs_per_worker="
        f"{rollout.num_envs_per_worker}{agents} x rollout={rollout.steps}{share} = {float(per_round):.10g} in a "
        f"sampling round, a ratio of {float(ratio):.6g}. {mode} on 1, 2, 3, ... whole rounds: "
        f"{advice}, or {other}."
    ]


def share_problems(config: Config) -> list[str]:
    """The learners of a policy share groups and trajectories evenly (row C-X2 of the PPO details)."""
    rollout, learners, problems = config.rollout, config.learner.num_learners, []
    groups, trajectories = (rollout.num_workers or 1) * config.groups_per_worker, trajectories_per_dataset(config)
    if groups % learners:
        problems.append(
            f"num_learners={learners} cannot share the {groups} groups of environments (num_workers="
            f"{rollout.num_workers} x worker_num_splits={config.groups_per_worker}) evenly. Use a --num_learners that "
            f"divides {groups}, or another --num_workers."
        )
    if trajectories % learners:
        problems.append(
            f"num_learners={learners} cannot share the {trajectories} trajectories of a batch (batch_size="
            f"{config.learner.batch_size} x num_batches_per_epoch={config.learner.num_batches_per_epoch} transitions, "
            f"rollout={rollout.steps}) evenly. Use a --num_learners that divides {trajectories}, or another "
            "--batch_size."
        )
    return problems


def recurrent_problems(config: Config) -> list[str]:
    """Minibatches of a recurrent policy are whole trajectories (row C35 of the PPO details)."""
    learners, parts = config.learner.num_learners, config.learner.num_minibatches
    trajectories = trajectories_per_dataset(config) // learners
    if not config.model.use_rnn or trajectories % parts == 0:
        return []
    owner = "that each learner has of a batch" if learners > 1 else "of a batch"
    return [
        f"use_rnn=True trains on whole trajectories, and the {trajectories} trajectories {owner} cannot be dealt to "
        f"num_batches_per_epoch={parts} equal minibatches. Use a --num_batches_per_epoch that divides {trajectories}."
    ]
