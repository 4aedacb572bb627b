"""The parts of a learner, made as the flags ask for them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from sf.config import Config, limit_of_drawn_lag, trajectories_per_dataset
from sf.learner.admission import Admission
from sf.learner.batcher import Batcher
from sf.learner.lag_target import LagTarget
from sf.learner.off_policy import OffPolicy
from sf.learner.off_policy_update import OffPolicyUpdate
from sf.learner.peers import Peers, peers_of
from sf.learner.source import BatchSource, ReleasedAtOnce
from sf.learner.training import Training
from sf.learner.trial import algorithm_of
from sf.learner.update import Update
from sf.machine.memory import keep_freed_memory
from sf.policy import ActorCritic
from sf.shared.context import LearnerLinks, RunContext
from sf.shared.progress import Progress


def seed_of_policy(seed: int, policy_id: int) -> int:
    """The seed of the first weights: that of the run for policy 0, one that no other policy and run has for others."""
    if policy_id == 0:
        return seed
    return int(np.random.SeedSequence(seed, spawn_key=(policy_id,)).generate_state(1)[0])


def prepare_torch(seed: int, num_threads: int) -> None:
    torch.set_default_dtype(torch.float32)  # a module of the user's may have chosen another one
    torch.manual_seed(seed)
    torch.set_num_threads(num_threads)
    keep_freed_memory()


def peers_for(
    config: Config,
    context: RunContext,
    policy_id: int,
    index: int,
    links: LearnerLinks,
    progress: Progress,
    may_go_on: bool,
) -> Peers:
    """The other learners of the policy: of other ranks, or of this run.

    Args:
        config: of the run.
        context: of all roles.
        policy_id: that they train.
        index: of this learner among those of the policy in this run.
        links: to the other roles.
        progress: of this learner.
        may_go_on: whether most ranks go on without the whole share of the others.
    """
    arena = context.arena
    if context.rank.is_alone:
        return peers_of(policy_id, index, arena, links.learners, progress)
    from sf.learner.ranks import Ranks  # with torch.distributed, which most runs do without

    enough = math.ceil(config.learner.ranks_to_wait_for * context.rank.world_size)
    return Ranks(context.rank, policy_id, arena, links.learners[index], progress, enough if may_go_on else None)


def update_of(network: ActorCritic, config: Config, context: RunContext, peers: Peers) -> Training:
    """The training of the network, at version 0."""
    num_streams = context.topology.num_groups * context.topology.rows
    algorithm = algorithm_of(config.learner)
    if isinstance(algorithm, OffPolicy):
        return OffPolicyUpdate(network, config.learner, algorithm, num_streams, peers, config.replay)
    return Update(network, config.learner, num_streams, peers, algorithm, config.replay)


def source_of(batcher: Batcher, update: Training, async_rl: bool, wake_workers: Callable[[], None]) -> BatchSource:
    """The datasets of the batcher, whose slots a learner that copies them into a buffer gives back at once."""
    # In synchronous mode nothing is sampled meanwhile.
    return ReleasedAtOnce(batcher, wake_workers) if update.replays and async_rl else batcher


def limits_of(
    config: Config, context: RunContext, index: int, version: int
) -> tuple[LagTarget | None, Admission | None]:
    """The limits of the policy lag that the flags ask for."""
    learner, topology = config.learner, context.topology
    bound, steps = learner.lag_bound, learner.steps_per_batch
    if config.run.async_rl and config.run.num_policies == 1:
        bound = limit_of_drawn_lag(learner, config.replay)
    trajectories = trajectories_per_dataset(config)
    target = None
    if learner.target_policy_lag is not None:
        held = topology.num_slots * topology.rows / trajectories
        target = LagTarget(learner.target_policy_lag, steps, held)
    if bound is None and target is None:
        return None, None
    share = trajectories // topology.num_learners
    return target, Admission(context.slots(), index, share, steps, bound, version, target)
