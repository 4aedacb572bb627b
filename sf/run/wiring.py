"""The connections of a run: all that the processes share is made here, and every connection is listed once.

rollout-i ── request word + doorbell ──► inference-p-j        j = i mod workers per policy
rollout-i ◄── answer word + doorbell ─── inference-p-j        actions are written in place
              without doorbells, if rollout-i acts for itself: then inference-i of all policies is in it
rollout-i ── slot full + doorbell ─────► learner-p            the one of its learners that owns the group
rollout-i ◄── slot free + doorbell ───── learner-p
learner-p ◄── gradients, moments ──────► learner-p-k          shared memory + doorbell, if p has several learners
learner-p ◄── the same, and goodbyes ──► learner-p of a rank  gloo, and the store of torchrun, if there are several
learner-p ── published weights ────────► inference-p-j        read before every forward pass
learner-p ◄── control signals ────────── supervisor           save
learner-p ── train summaries, saved ───► supervisor           a pipe of its own
eval-0    ◄── published weights ──────── learner-p            read when an evaluation begins
eval-0    ── scores, best checkpoints ─► supervisor           a pipe of its own
all roles ── records ──────────────────► supervisor           read when it reports

A simulator in tensors has one role in the place of rollout and inference workers, in the process of the learner:

rollout-0 ── slot full ────────────────► learner-0            its fields are tensors of the device of both
rollout-0 ◄── slot free, weights ─────── learner-0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sf.config import Config
from sf.envs import EnvSource
from sf.inference.bells import InferenceBells
from sf.machine.cores import Compute, usable_cores
from sf.machine.limits import ensure_file_size
from sf.machine.rank import ALONE, Rank
from sf.plugins import Sent, plugins_to_send
from sf.rollout.bells import RolloutBells
from sf.run.allocation import make_arena, room_on_device
from sf.run.topology import Sizes
from sf.shared.arena import Arena, Array
from sf.shared.context import EvaluatorLinks, LearnerLinks, RunContext
from sf.shared.control import CONTROL_BYTES, ControlEnd, connect
from sf.shared.doorbell import Doorbell
from sf.shared.fields import StoredField
from sf.shared.leaving import Leaving
from sf.shared.progress import Phase
from sf.shared.records import BEGAN_S, LEARNER_COUNTERS
from sf.shared.role import RoleSpec
from sf.shared.slots import Slots
from sf.shared.topology import Topology
from sf.shared.weights import PublishedWeights
from sf.spaces import EnvInfo
from sf.storage.experiment import Experiment

START_S = 120.0
"""Longest start of a role, imports and compilation included; that of environments can be set."""
FORWARD_S = 120.0
"""Longest forward pass of an inference worker."""
LEARN_S = 600.0
"""Longest optimizer step of a learner, and longest saving of a checkpoint."""
COMPILE_S = 3600.0
"""Longest optimizer step of a learner that compiles what it needs for it."""
WAIT_S = 60.0
"""A process that waits looks around every second; one that does not for so long has been stopped."""


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
    """The objects that the supervisor keeps."""

    topology: Topology
    arena: Arena
    slots: Slots
    run_state: Array
    began_s: Array
    """[1] when all roles were ready, by the monotonic clock; nan until then."""
    doorbells: list[Doorbell]
    """Doorbells of all roles."""
    learner_bells: list[Doorbell]
    """Doorbells of the first learner of each policy."""
    supervisor_bell: Doorbell
    controls: list[ControlEnd]
    """This end of the control connection of the first learner of each policy."""
    least_rollout_workers: int
    """So many must be left for the run to go on."""
    rank: Rank
    """Rank of this run."""
    leaving: Leaving
    """Why this rank ends, or another one."""

    @property
    def has_trained(self) -> bool:
        """Whether a learner has finished an iteration."""
        return bool(self.arena["records/learner"][:, LEARNER_COUNTERS.index("iterations")].any())


@dataclass(frozen=True)
class Wiring:
    """Everything that is shared, and the part that each role gets."""

    config: Config
    source: EnvSource
    experiment: Experiment
    context: RunContext
    sizes: Sizes
    weights: list[PublishedWeights]
    """Weights of each policy."""
    rollout_bells: list[Doorbell]
    inference_bells: list[list[Doorbell]]
    """By policy, then worker."""
    learner_bells: list[list[Doorbell]]
    """By policy, then learner."""
    supervisor_bell: Doorbell
    eval_bell: Doorbell
    learner_ends: list[ControlEnd]
    """Connections of the first learner of each policy."""
    plugins: Sent
    """Encoders and algorithms that the user has registered."""

    @property
    def topology(self) -> Topology:
        """Sizes of the shared memory."""
        return self.context.topology

    def learner(self, policy_id: int, index: int) -> RoleSpec:
        """One of the learners of a policy."""
        place = policy_id + index * self.topology.num_policies
        kind, further = self._kind_of_learner(policy_id)
        return RoleSpec(
            learner_name(policy_id, index),
            kind,
            further
            | {
                "context": self.context,
                "policy_id": policy_id,
                "index": index,
                "config": self.config,
                "links": LearnerLinks(
                    self.learner_bells[policy_id],
                    self.rollout_bells,
                    self.inference_bells[policy_id],
                    self.supervisor_bell,
                    self.weights[policy_id],
                    self.learner_ends[policy_id],
                ),
                "owner": self.experiment.owner,
                "compute": self._compute(place),
            },
            "learner",
            place,
            self.plugins,
            {
                Phase.START: START_S,
                Phase.STEP: COMPILE_S if self.config.learner.torch_compile else LEARN_S,
                Phase.WAIT: WAIT_S,
            },
        )

    def _kind_of_learner(self, policy_id: int) -> tuple[str, dict[str, Any]]:
        """The class of the learner of a policy, and what it takes beside the arguments of all."""
        if policy_id in self.config.run.frozen:
            return "sf.learner.frozen:FrozenLearner", {}
        if policy_id in self.config.seats:
            return "sf.learner.seat:SeatLearner", {}
        if self.config.population.with_pbt:
            return "sf.learner.evolving:EvolvingLearner", {"population": self.weights}
        return "sf.learner.worker:Learner", {}

    def inference(self, policy_id: int, index: int) -> RoleSpec:
        """One of the inference workers of a policy."""
        topology = self.topology
        place = policy_id * topology.inference_per_policy + index
        return RoleSpec(
            f"inference-{policy_id}-{index}",
            "sf.inference.worker:InferenceWorker",
            {
                "context": self.context,
                "policy_id": policy_id,
                "index": index,
                "config": self.config,
                "weights": self.weights[policy_id],
                "bells": InferenceBells(self.inference_bells[policy_id][index], self.rollout_bells),
            },
            "inference",
            place,
            self.plugins,
            {Phase.START: START_S, Phase.STEP: FORWARD_S, Phase.WAIT: WAIT_S},
            can_be_replaced=True,
        )

    def small_inference(self, index: int) -> RoleSpec:
        """The part of a rollout worker that acts for all policies; without plugins, which would bring torch along."""
        return RoleSpec(
            f"inference-{index}",
            "sf.inference.small_worker:SmallInference",
            {
                "context": self.context,
                "index": index,
                "config": self.config,
                "weights": self.weights,
                "bells": InferenceBells(self.rollout_bells[index], ()),
            },
            "inference",
            index,
        )

    def rollout(self, index: int) -> RoleSpec:
        """One of the rollout workers, with all that it needs if it acts for itself."""
        topology, policies = self.topology, range(self.topology.num_policies)
        inference = [self.inference_bells[p][index % topology.inference_per_policy] for p in policies]
        return RoleSpec(
            f"rollout-{index}",
            "sf.rollout.worker:RolloutWorker",
            {
                "context": self.context,
                "index": index,
                "config": self.config,
                "source": self.source,
                "bells": RolloutBells(
                    self.rollout_bells[index],
                    inference=[] if topology.workers_act else inference,
                    learners=[self.learner_bells[p][k] for p in policies for k in topology.learners_of_worker(index)],
                ),
            },
            "rollout",
            index,
            ({}, {}),
            self._env_deadlines_s() | {Phase.WAIT: WAIT_S},
            has_environments=True,
            can_be_replaced=True,
            companions=(self.small_inference(index),) if topology.workers_act else (),
        )

    def tensor_worker(self) -> RoleSpec:
        """The one that steps a simulator in tensors and acts in it, beside the learner in one process."""
        return RoleSpec(
            "rollout-0",
            "sf.tensors.worker:TensorWorker",
            {
                "context": self.context,
                "config": self.config,
                "source": self.source,
                "weights": self.weights[0],
                "compute": self._compute(0),
                "overlaps": self.config.overlaps,
            },
            "rollout",
            0,
            self.plugins,
            self._env_deadlines_s() | {Phase.WAIT: WAIT_S},
            has_environments=True,
            has_thread=self.config.overlaps,
        )

    def _compute(self, place: int) -> Compute:
        """The threads and the device of a learner; devices are dealt in turn."""
        accelerator = place + self.context.rank.local_rank if self.config.run.device == "gpu" else None
        return Compute(self.sizes.learner_threads, accelerator)

    def evaluator(self) -> RoleSpec:
        """The one that plays the evaluations."""
        return RoleSpec(
            "eval-0",
            "sf.evaluator.worker:Evaluator",
            {
                "context": self.context,
                "config": self.config,
                "source": self.source,
                "links": EvaluatorLinks(self.weights, self.eval_bell, self.supervisor_bell),
                "owner": self.experiment.owner,
            },
            "eval",
            0,
            self.plugins,
            self._env_deadlines_s() | {Phase.WAIT: WAIT_S},
            has_environments=True,
            can_be_replaced=True,
        )

    def shared(self, controls: list[ControlEnd]) -> Shared:
        """The supervisor's part."""
        by_policy = [bell for row in self.learner_bells + self.inference_bells for bell in row]
        return Shared(
            topology=self.topology,
            arena=self.context.arena,
            slots=self.context.slots(),
            run_state=self.context.arena["run_state"],
            began_s=self.context.arena[BEGAN_S],
            doorbells=[self.eval_bell, *by_policy, *self.rollout_bells],
            learner_bells=[row[0] for row in self.learner_bells],
            supervisor_bell=self.supervisor_bell,
            controls=controls,
            least_rollout_workers=self.sizes.least_rollout_workers,
            rank=self.context.rank,
            leaving=Leaving(self.context.arena),
        )

    def _env_deadlines_s(self) -> dict[Phase, float]:
        faults = self.config.faults
        return {
            Phase.START: START_S,
            Phase.INIT: faults.env_init_timeout,
            Phase.RESET: faults.env_reset_timeout,
            Phase.STEP: faults.env_step_timeout,
        }


def wire(
    config: Config,
    info: EnvInfo,
    source: EnvSource,
    experiment: Experiment,
    extra_fields: Mapping[str, StoredField] | None = None,
    rank: Rank = ALONE,
    num_earlier_starts: int | None = None,
) -> tuple[Shared, list[RoleSpec]]:
    """Allocates what is shared and lists the roles, learners first because all others wait for their weights.

    Args:
        config: of the run, resolved.
        info: spaces of the environments.
        source: of the environments.
        experiment: where the run saves.
        extra_fields: fields that trajectories store beside the fields of `sf.shared.slot_fields`.
        rank: of this run among those that train together.
        num_earlier_starts: of all ranks, if the directory of the experiment does not know it.

    Raises:
        ResourceError: there is not enough memory, or too few open files, processes or threads are allowed.
        ConfigError: a registered encoder cannot be sent to other processes.
    """
    sizes, serial = Sizes.of(config, info, rank.share_of(usable_cores())), config.run.serial_mode
    topology, in_tensors = sizes.topology, config.rollout.vectorization == "tensors"
    if not serial:
        ensure_file_size(CONTROL_BYTES)
    policies, workers = range(topology.num_policies), range(topology.num_workers)
    inference, learners = range(topology.inference_per_policy), range(topology.num_learners)
    starts = experiment.num_earlier_starts if num_earlier_starts is None else num_earlier_starts
    seed = run_seed(config.run.seed or 0, starts)
    experiment.make_checkpoints(topology.num_policies)
    rollout_bells = [Doorbell() for _ in workers]
    controls = [ControlEnd(f"supervisor-{p}", serial) for p in policies]
    wires = Wiring(
        config=config,
        source=source,
        experiment=experiment,
        context=RunContext(
            topology,
            info,
            seed,
            make_arena(config, sizes, info, extra_fields, in_tensors),
            rank,
            room_on_device(topology, info, extra_fields) if in_tensors else None,
        ),
        sizes=sizes,
        weights=[PublishedWeights() for _ in policies],
        rollout_bells=rollout_bells,
        inference_bells=[rollout_bells if topology.workers_act else [Doorbell() for _ in inference] for _ in policies],
        learner_bells=[[Doorbell() for _ in learners] for _ in policies],
        supervisor_bell=Doorbell(),
        eval_bell=Doorbell(),
        learner_ends=[ControlEnd(f"learner-{p}", serial) for p in policies],
        plugins=plugins_to_send(),
    )
    for control, learner_end in zip(controls, wires.learner_ends, strict=True):
        connect(control, learner_end)
    specs = [wires.learner(p, k) for p in policies for k in learners]
    if in_tensors:
        specs += [wires.tensor_worker()]
    else:
        specs += [wires.inference(p, j) for p in policies for j in inference if not topology.workers_act]
        specs += [wires.rollout(i) for i in workers]
    specs += [wires.evaluator()] if config.evaluation.eval_every_steps > 0 else []
    return wires.shared(controls), specs
