"""Who talks to whom: everything the processes share is made here, and every connection is listed once.

rollout-i ── request word + doorbell ──► inference-p-j        j = i mod workers per policy
rollout-i ◄── answer word + doorbell ─── inference-p-j        actions are written in place
rollout-i ── slot full + doorbell ─────► learner-p            the one of its learners that owns the group
rollout-i ◄── slot free + doorbell ───── learner-p
learner-p ◄── gradients, moments ──────► learner-p-k          shared memory + doorbell, if p has several learners
learner-p ── published weights ────────► inference-p-j        read before every forward pass
learner-p ◄── control signals ─────────► supervisor           save, saved
learner-p ── train summaries ──────────► supervisor           a pipe of its own
eval-0    ◄── published weights ──────── learner-p            read when an evaluation begins
eval-0    ── scores, best checkpoints ─► supervisor           a pipe of its own
everyone  ── records ──────────────────► supervisor           read when it reports
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from sf.arena import Arena, Array, Field
from sf.config import Config, trajectories_per_dataset
from sf.control import ControlEnd, connect
from sf.doorbell import Doorbell
from sf.envs import EnvSource
from sf.exchange import exchange_fields
from sf.experiment import Experiment
from sf.limits import ensure_descriptors, ensure_processes
from sf.models import models_to_send
from sf.process import RoleSpec
from sf.progress import Phase
from sf.records import mark_lag_unknown, record_fields
from sf.slots import Slots, Topology, slot_fields, slots_per_group
from sf.spaces import EnvInfo, image_layout
from sf.weights import PublishedWeights

MEMORY_WITH_TORCH, MEMORY_WITHOUT_TORCH = 150 * 2**20, 30 * 2**20
"""Bytes that a process takes at least, whatever the run is like."""
MOST_THREADS = 8
"""Cores that a learner may take from the other roles; more than two have not been measured."""
INIT_S = 120.0
"""Longest start of a role, imports and compilation included; that of environments can be set."""
FORWARD_S = 120.0
"""Longest forward pass of an inference worker."""
LEARN_S = 600.0
"""Longest optimizer step of a learner, and longest saving of a checkpoint."""
WAIT_S = 60.0
"""A process that waits looks around every second; one that does not for so long has been stopped."""


def topology_of(config: Config, info: EnvInfo) -> Topology:
    """The sizes that follow from a resolved configuration."""
    rollout, run = config.rollout, config.run
    assert rollout.num_workers is not None
    assert rollout.num_envs_per_worker is not None
    envs_per_group = rollout.num_envs_per_worker // rollout.worker_num_splits
    return Topology(
        num_workers=rollout.num_workers,
        groups_per_worker=rollout.worker_num_splits,
        envs_per_group=envs_per_group,
        agents_per_env=info.num_agents,
        rollout=rollout.rollout,
        slots_per_group=slots_per_group(
            trajectories_per_dataset(config) // config.learner.num_learners,
            envs_per_group * info.num_agents,
            rollout.num_workers * rollout.worker_num_splits // config.learner.num_learners,
            config.datasets_in_flight,
        ),
        num_policies=run.num_policies,
        inference_per_policy=config.inference.policy_workers_per_policy,
        memory_size=config.model.memory_size,
        num_learners=config.learner.num_learners,
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
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // learners))


def learner_name(policy_id: int, index: int) -> str:
    """The first learner of a policy speaks for all of them and bears the name of the policy alone."""
    return f"learner-{policy_id}-{index}" if index else f"learner-{policy_id}"


def run_seed(seed: int, num_earlier_starts: int) -> int:
    """The seed of this start: the one of the run, or one of its own if the run is continued."""
    if num_earlier_starts == 0:
        return seed
    return int(np.random.SeedSequence([seed, num_earlier_starts]).generate_state(1)[0])


@dataclass(frozen=True)
class Shared:
    """What the supervisor keeps in its hands."""

    topology: Topology
    arena: Arena
    slots: Slots
    run_state: Array
    doorbells: list[Doorbell]
    """Of all roles."""
    learner_bells: list[Doorbell]
    """Of the first learner of each policy."""
    supervisor_bell: Doorbell
    controls: list[ControlEnd]
    """This end of the control connection of the first learner of each policy."""
    least_rollout_workers: int
    """So many must be left for the run to go on."""


def ensure_room_for_processes(config: Config, topology: Topology, threads_of_learner: int) -> int:
    """Compares the processes and threads with the limits of the system; returns the bytes that they take at least.

    Raises:
        ResourceError: too few open files, processes or threads are allowed.
    """
    each_policy = topology.inference_per_policy + topology.num_learners
    with_torch = 1 + topology.num_policies * each_policy + (config.evaluation.eval_every_steps > 0)
    num_processes = topology.num_workers + with_torch
    ensure_descriptors(num_processes, num_doorbells=num_processes + 1)
    ensure_processes(num_processes, (threads_of_learner - 1) * topology.num_policies * topology.num_learners)
    return with_torch * MEMORY_WITH_TORCH + topology.num_workers * MEMORY_WITHOUT_TORCH


def wire(config: Config, info: EnvInfo, source: EnvSource, experiment: Experiment) -> tuple[Shared, list[RoleSpec]]:
    """Allocates what is shared and lists the roles, learners first because they take longest to start.

    Raises:
        ResourceError: there is not enough memory, or too few open files, processes or threads are allowed.
        ConfigError: a registered encoder cannot be sent to other processes.
    """
    topology = topology_of(config, info)
    policies, workers = range(topology.num_policies), range(topology.num_workers)
    inference, learner_indices = range(topology.inference_per_policy), range(topology.num_learners)
    fields = slot_fields(topology, info)
    fields |= record_fields(topology.num_workers, len(policies) * len(inference), len(policies), topology.num_learners)
    fields |= exchange_fields(len(policies), topology.num_learners)
    num_threads = learner_threads(config, info)
    others = 0 if config.run.serial_mode else ensure_room_for_processes(config, topology, num_threads)
    arena = Arena(fields | {"run_state": Field((1,), "int64")}, others=others)
    mark_lag_unknown(arena)
    weights = [PublishedWeights() for _ in policies]
    rollout_bells = [Doorbell() for _ in workers]
    inference_bells = [[Doorbell() for _ in inference] for _ in policies]
    learner_bells = [[Doorbell() for _ in learner_indices] for _ in policies]
    supervisor_bell = Doorbell()
    serial = config.run.serial_mode
    controls = [ControlEnd(f"supervisor-{p}", serial) for p in policies]
    learner_ends = [ControlEnd(f"learner-{p}", serial) for p in policies]
    for control, learner_end in zip(controls, learner_ends, strict=True):
        connect(control, learner_end)
    seed = run_seed(config.run.seed or 0, experiment.num_earlier_starts)
    common = {"topology": topology, "info": info, "seed": seed, "arena": arena}
    models = models_to_send()
    faults, on_gpu = config.faults, config.run.device == "gpu"
    env_deadlines_s = {
        Phase.INIT: faults.env_init_timeout,
        Phase.RESET: faults.env_reset_timeout,
        Phase.STEP: faults.env_step_timeout,
    }

    learners = [
        RoleSpec(
            learner_name(p, k),
            "sf.learner.worker:FurtherLearner" if k else "sf.learner.worker:Learner",
            common
            | {
                "policy_id": p, "index": k, "config": config, "weights": weights[p], "learners": learner_bells[p],
                "workers": rollout_bells, "inference": inference_bells[p], "supervisor": supervisor_bell,
                "control": learner_ends[p], "checkpoints": experiment.checkpoints(p), "num_threads": num_threads,
                "accelerator": p + k * len(policies) if on_gpu else None,
            },
            "learner", p + k * len(policies), models,
            {Phase.INIT: INIT_S, Phase.STEP: LEARN_S, Phase.WAIT: WAIT_S},
        )
        for p in policies
        for k in learner_indices
    ]  # fmt: skip
    inferences = [
        RoleSpec(
            f"inference-{p}-{j}",
            "sf.inference.worker:InferenceWorker",
            common
            | {
                "policy_id": p, "index": j, "config": config.model, "weights": weights[p],
                "one_by_one": not config.run.async_rl and not serial,
                "doorbell": inference_bells[p][j], "workers": rollout_bells,
                "accelerator": len(policies) * len(learner_indices) + p * len(inference) + j if on_gpu else None,
                "bf16": config.run.bf16,
            },
            "inference", p * len(inference) + j, models,
            {Phase.INIT: INIT_S, Phase.STEP: FORWARD_S, Phase.WAIT: WAIT_S}, can_be_replaced=True,
        )
        for p in policies
        for j in inference
    ]  # fmt: skip
    rollouts = [
        RoleSpec(
            f"rollout-{i}",
            "sf.rollout.worker:RolloutWorker",
            common
            | {
                "index": i, "config": config.rollout, "drop_nonfinite": faults.on_nonfinite == "drop",
                "repeatable": serial,
                "source": source, "doorbell": rollout_bells[i],
                "inference": [inference_bells[p][i % len(inference)] for p in policies],
                "learners": [learner_bells[p][k] for p in policies for k in topology.learners_of_worker(i)],
            },
            "rollout", i, {}, env_deadlines_s | {Phase.WAIT: WAIT_S}, has_environments=True, can_be_replaced=True,
        )
        for i in workers
    ]  # fmt: skip
    eval_bell = Doorbell()
    evaluators = [
        RoleSpec(
            "eval-0",
            "sf.evaluator.worker:Evaluator",
            common
            | {
                "config": config, "source": source, "weights": weights, "doorbell": eval_bell,
                "supervisor": supervisor_bell,
                "checkpoints": [experiment.checkpoints(p) for p in policies],
            },
            "eval", 0, models, {Phase.INIT: INIT_S} | env_deadlines_s | {Phase.WAIT: WAIT_S},
            has_environments=True, can_be_replaced=True,
        )
        for _ in range(config.evaluation.eval_every_steps > 0)
    ]  # fmt: skip
    bells = [eval_bell, *(bell for row in learner_bells + inference_bells for bell in row), *rollout_bells]
    first_bells = [row[0] for row in learner_bells]
    shared = Shared(
        topology, arena, Slots(topology, arena, info), arena["run_state"], bells, first_bells, supervisor_bell,
        controls, least_rollout_workers(config, topology),
    )  # fmt: skip
    return shared, [*learners, *inferences, *rollouts, *evaluators]
