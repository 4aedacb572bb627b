"""What follows from a resolved configuration before anything is made: sizes, threads, and the room that they need."""

from __future__ import annotations

import math
from fractions import Fraction

from sf.config import Config, envs_per_group, rows_per_group, trajectories_per_dataset
from sf.machine.cores import usable_cores
from sf.machine.limits import ensure_descriptors, ensure_processes
from sf.shared.slots import Topology, slots_per_group
from sf.spaces import EnvInfo, image_layout

MEMORY_WITH_TORCH, MEMORY_WITHOUT_TORCH = 150 * 2**20, 30 * 2**20
"""Bytes that a process takes at least, whatever the run is like."""
MOST_THREADS = 8
"""Cores that a learner may take from the other roles; more than two have not been measured."""


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
        rollout=rollout.rollout,
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


def batches_held(config: Config, info: EnvInfo) -> Fraction:
    """Batches in all slots when sampling pauses; more than were asked for where the fewest slots are too many."""
    topology = topology_of(config, info)
    return Fraction(topology.num_slots * topology.rows, trajectories_per_dataset(config))


def note_on_batches_held(config: Config, info: EnvInfo) -> str:
    """A sentence where more batches are held than the configuration says, else nothing."""
    held, promised = batches_held(config, info), config.datasets_in_flight
    if held <= promised:
        return ""
    topology, learner = topology_of(config, info), config.learner
    room = topology.num_slots * topology.rows
    return (
        f"Warning: up to {float(held):.3g} batches are collected before sampling pauses, more than "
        f"num_batches_to_accumulate={promised}, and policy lag grows with them. Environments collect whole "
        f"trajectories: there is room for {room} of rollout={topology.rollout} steps, and a batch "
        f"(batch_size={learner.batch_size} x num_batches_per_epoch={learner.num_minibatches}) takes "
        f"{trajectories_per_dataset(config)}. Larger batches or fewer environments keep to the number."
    )


def least_rollout_workers(config: Config, topology: Topology) -> int:
    """How many rollout workers fill the datasets: half of them, if the slots of so many hold a dataset.

    A synchronous run needs all of them, and so do several learners, each of which has workers of its own.
    """
    if not config.run.async_rl or topology.num_learners > 1:
        return topology.num_workers
    each = topology.groups_per_worker * topology.slots_per_group * topology.rows
    dataset = trajectories_per_dataset(config)
    needed = dataset + topology.rows - math.gcd(dataset, topology.rows)
    return max(-(-topology.num_workers // 2), -(-needed // each))


def learner_threads(config: Config, info: EnvInfo) -> int:
    """One, because the other cores belong to other roles; but with images the CPU spends nearly all its time there.

    Two threads on two cores, beside all other roles, learn 1.2 times as many images per second as one.
    """
    architecture = config.model.encoder_conv_architecture
    has_images = any(image_layout(leaf, architecture) for leaf in info.observations.values())
    if not has_images or config.run.serial_mode or config.run.device != "cpu":
        return 1
    learners = config.run.num_policies * config.learner.num_learners
    return max(1, min(MOST_THREADS, usable_cores() // learners))


def ensure_room_for_processes(config: Config, topology: Topology, threads_of_learner: int) -> int:
    """Compares the processes and threads with the limits of the system; returns the bytes that they take at least.

    Raises:
        ResourceError: too few open files, processes or threads are allowed.
    """
    each_policy = (0 if topology.workers_act else topology.inference_per_policy) + topology.num_learners
    with_torch = 1 + topology.num_policies * each_policy + (config.evaluation.eval_every_steps > 0)
    num_processes = topology.num_workers + with_torch
    ensure_descriptors(num_processes, num_doorbells=num_processes + 1)
    ensure_processes(num_processes, (threads_of_learner - 1) * topology.num_policies * topology.num_learners)
    return with_torch * MEMORY_WITH_TORCH + topology.num_workers * MEMORY_WITHOUT_TORCH
