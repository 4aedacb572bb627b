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

import numpy as np

from sf.config import Config
from sf.envs import EnvSource
from sf.machine.cores import usable_cores
from sf.machine.limits import ensure_file_size
from sf.machine.rank import ALONE, Rank
from sf.plugins import plugins_to_send
from sf.run.allocation import make_arena, room_on_device
from sf.run.specifications import Wiring
from sf.run.topology import Sizes
from sf.shared.arena import Arena, Array
from sf.shared.context import RunContext
from sf.shared.control import CONTROL_BYTES, ControlEnd, connect
from sf.shared.doorbell import Doorbell
from sf.shared.fields import StoredField
from sf.shared.leaving import Leaving
from sf.shared.records import BEGAN_S, LEARNER_COUNTERS
from sf.shared.role import RoleSpec
from sf.shared.slots import Slots
from sf.shared.topology import Topology
from sf.shared.weights import PublishedWeights
from sf.spaces import EnvInfo
from sf.storage.experiment import Experiment


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
    return _shared(wires, controls), specs


def _shared(wires: Wiring, controls: list[ControlEnd]) -> Shared:
    """The part of the supervisor."""
    by_policy = [bell for row in wires.learner_bells + wires.inference_bells for bell in row]
    return Shared(
        topology=wires.topology,
        arena=wires.context.arena,
        slots=wires.context.slots(),
        run_state=wires.context.arena["run_state"],
        began_s=wires.context.arena[BEGAN_S],
        doorbells=[wires.eval_bell, *by_policy, *wires.rollout_bells],
        learner_bells=[row[0] for row in wires.learner_bells],
        supervisor_bell=wires.supervisor_bell,
        controls=controls,
        least_rollout_workers=wires.sizes.least_rollout_workers,
        rank=wires.context.rank,
        leaving=Leaving(wires.context.arena),
    )
