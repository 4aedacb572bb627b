"""The sizes that follow from a resolved configuration: shared memory, threads, processes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from sf.config import (
    Config,
    envs_per_group,
    rows_per_group,
    trajectories_per_dataset,
)
from sf.machine.cores import usable_cores
from sf.shared.topology import Topology, slots_per_group
from sf.spaces import EnvInfo
from sf.spaces.images import image_layout

MOST_THREADS = 8
"""Cores that a learner may take from the other roles; more than two have not been measured."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that follow from a configuration without gaps."""

    topology: Topology
    """Sizes of the shared memory."""
    trajectories: int
    """In a batch, of all policies together."""
    learner_threads: int
    """Threads of each learner."""
    least_rollout_workers: int
    """So many must be left for the run to go on."""
    num_with_torch: int
    """Processes that load torch."""

    @classmethod
    def of(cls, config: Config, info: EnvInfo, cores: int | None = None) -> Sizes:
        """Those of a run of several processes.

        Args:
            config: decided.
            info: spaces of the environments.
            cores: that the run may use; None for all that it can.
        """
        topology, trajectories = topology_of(config, info), trajectories_per_dataset(config)
        each_policy = (0 if topology.workers_act else topology.inference_per_policy) + topology.num_learners
        with_torch = 1 + topology.num_policies * each_policy + (config.evaluation.eval_every_steps > 0)
        return cls(
            topology=topology,
            trajectories=trajectories,
            learner_threads=learner_threads(config, info, cores),
            least_rollout_workers=_least_rollout_workers(config, topology, trajectories),
            num_with_torch=with_torch,
        )

    @property
    def num_further_threads(self) -> int:
        """Those of learners, beside the first one of each."""
        return (self.learner_threads - 1) * self.topology.num_policies * self.topology.num_learners

    @property
    def batches_held(self) -> Fraction:
        """In all slots when sampling pauses; more than were asked for where the fewest slots are too many."""
        return Fraction(self.topology.num_slots * self.topology.rows, self.trajectories)


def topology_of(config: Config, info: EnvInfo) -> Topology:
    """The sizes that follow from a resolved configuration."""
    rollout, run, inference_workers = config.rollout, config.run, config.inference.policy_workers_per_policy
    assert inference_workers is not None
    assert rollout.num_workers is not None
    return Topology(
        num_workers=rollout.num_workers,
        groups_per_worker=config.groups_per_worker,
        envs_per_group=envs_per_group(config),
        agents_per_env=info.num_agents,
        rollout=rollout.steps,
        slots_per_group=slots_per_group(
            trajectories_per_dataset(config) // config.learner.num_learners,
            rows_per_group(config, info.num_agents),
            rollout.num_workers * config.groups_per_worker // config.learner.num_learners,
            config.datasets_in_flight,
        ),
        num_policies=run.num_policies,
        inference_per_policy=inference_workers or rollout.num_workers,
        memory_size=config.model.memory_size,
        num_learners=config.learner.num_learners,
        workers_act=config.workers_act,
    )


def learner_threads(config: Config, info: EnvInfo, cores: int | None = None) -> int:
    """One, because the other cores belong to other roles; but with images the CPU spends nearly all its time there.

    Two threads on two cores, beside all other roles, learn 1.2 times as many images per second as one. SAC with two
    layers of 256 learned 0.6 times as much with two as with one.
    """
    architecture = config.model.encoder_conv_architecture
    has_images = any(image_layout(leaf, architecture) for leaf in info.observations.values())
    if not has_images or config.run.serial_mode or config.run.device != "cpu":
        return 1
    learners = config.run.num_policies * config.learner.num_learners
    return max(1, min(MOST_THREADS, (cores or usable_cores()) // learners))


def _least_rollout_workers(config: Config, topology: Topology, trajectories: int) -> int:
    """How many rollout workers fill batches: half of them, if the slots of so many hold a batch.

    A synchronous run needs all of them, and so do several learners, each of which has workers of its own.
    """
    if not config.run.async_rl or topology.num_learners > 1:
        return topology.num_workers
    each = topology.groups_per_worker * topology.slots_per_group * topology.rows
    needed = trajectories + topology.rows - math.gcd(trajectories, topology.rows)
    return max(-(-topology.num_workers // 2), -(-needed // each))
