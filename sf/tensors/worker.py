"""A simulator in tensors and the policy that acts in it, on one device: rollout worker and inference worker in one.

In: published weights, free slots. Out: full slots, whose fields are tensors of `sf.tensors.fields`, and finished
episodes. It lives in the process of the learner, which trains on the same memory. No observation, action or reward
passes through the host, and no step waits for the device; each trajectory does so a few times at its end.

In an asynchronous run it has a thread of its own, and on CUDA a stream, so that the next dataset is sampled while the
learner trains. Slots hold two datasets, and that of the learner is given back when it is learned: none is older.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sf.config import Config
from sf.envs import EnvSource
from sf.envs.blame import blamed_on
from sf.envs.generators import seed_globals
from sf.errors import EnvError
from sf.machine.cores import Compute
from sf.nets.device import use_device
from sf.shared.arena import Array
from sf.shared.context import RunContext
from sf.shared.episodes import EpisodeRing
from sf.shared.fields import Axes
from sf.shared.progress import Phase
from sf.shared.records import REPORTED_COPIES, inference_record, rollout_record
from sf.shared.slot_fields import HAS_LAST_OBSERVATION, LAST_OBSERVATIONS, OBSERVATIONS, below
from sf.shared.slots import SlotState
from sf.shared.weights import PublishedWeights
from sf.tensors.actions import tensor_converter
from sf.tensors.actor import TensorActor
from sf.tensors.checks import Categories, as_leaf, expect_choices, expect_finite
from sf.tensors.episodes import TrajectoryEpisodes
from sf.tensors.fields import shapes_of
from sf.tensors.finals import TrajectoryFinals
from sf.tensors.metrics import TrajectoryMetrics
from sf.tensors.simulator import make_simulator, queue_of_its_own

TURN_S = 0.05
"""The process looks around at least so often, between two steps."""
PLAIN = ("slot", "last_slot", "t", "num_filled")
"""Attributes that are part of its state as they are."""
ACTIONS = 0x74656E73
"""The last word of the entropy of the actions."""


class TensorWorker:
    """A role of a run in one process: each `step` goes on with a trajectory, if there is a slot for it."""

    tell: Callable[[Any], None]

    def __init__(
        self,
        context: RunContext,
        config: Config,
        source: EnvSource,
        weights: PublishedWeights,
        compute: Compute,
        incarnation: int = 0,
        overlaps: bool = False,
    ) -> None:
        """Makes the simulator and the policy; its weights come with the first publication.

        Args:
            context: of all roles, with fields in tensors.
            config: of the run, resolved.
            source: makes the simulator, on the device of the run if its maker takes a `device`.
            weights: published by the learner.
            compute: the device, that of the learner.
            incarnation: always 0.
            overlaps: its steps are those of another thread than the learner's, and take turns with nothing.

        Raises:
            EnvError: the simulator cannot be made, or is not one in tensors.
            ResourceError: there is no accelerator.
        """
        topology = context.topology
        assert context.tensors is not None
        self._rollout, self._rows = topology.rollout, topology.rows
        self.record, self._acting = rollout_record(context.arena, 0), inference_record(context.arena, 0)
        self.device = use_device(compute.accelerator, context.arena)
        self._slots, self._fields = context.slots(), context.tensors.on(self.device)
        self._observations = below(OBSERVATIONS, self._fields)
        self._info, self._config = context.info, config.rollout
        self._leaves, self._categories = context.info.observations, Categories(context.info, self.device)

        sequence = np.random.SeedSequence([context.sampling_seed, 0, incarnation])
        self._seed = int(sequence.generate_state(1)[0] % 2**31)
        seed_globals([context.sampling_seed, 0, incarnation, ACTIONS], with_torch=False)
        self.record.progress.enter(Phase.INIT)
        self._many = make_simulator(source, self._rows, self._seed, self.device, overlaps)
        self._tensors, self._env_id = self._many.tensors, self._info.env_id
        self._to_env = tensor_converter(self._many.single_action_space, config.rollout.action_bounds, self.device)

        word = int(np.random.SeedSequence([context.sampling_seed, incarnation, ACTIONS]).generate_state(1)[0])
        self._actor = TensorActor(context, config, weights, self._acting, self.device, self._observations, word)
        self.network, self._memory = self._actor.network, self._actor.memory
        self._queue = queue_of_its_own(self.device) if overlaps else contextlib.nullcontext

        self._episodes = TrajectoryEpisodes(self._rows, self.device)
        self._metrics = TrajectoryMetrics(self._rollout, self._rows, self.device)
        self._finals = TrajectoryFinals(self._tensors, self._env_id, self._leaves, self._categories, self._rollout)
        self._memories = torch.zeros(self._rollout, *self._memory.shape, device=self.device)
        """[T, rows, S] recurrent states before each reset."""
        self._ring = EpisodeRing(context.arena, 0)
        self._slot: int | None = None
        self._last_slot: int | None = None
        self._last_ended: Array | None = None
        self._t = 0
        self._num_filled = 0

    def step(self) -> bool:
        """Goes on with the trajectory for a short time; False if there is no slot for it.

        Raises:
            EnvError: the simulator raises, breaks its promises, or returns numbers that are not finite.
        """
        self._acting.lap("wait")
        with torch.no_grad(), self._queue():
            has_weights = self._actor.has_weights or self._actor.refresh_weights()
            last = self._rollout
            if not has_weights or self._slot is None:
                if not has_weights or not self._begin():
                    self.record.progress.enter(Phase.WAIT)
                    return False
                # What follows an iteration must not depend on the clock: the session looks before episodes are told.
                last -= 1
            assert self._slot is not None
            deadline = time.monotonic() + TURN_S
            while self._t < last and time.monotonic() < deadline:
                self._advance(self._slot, self._t)
                self._t += 1
            if self._t == self._rollout:
                self._finish(self._slot)
        self.record.publish()
        self._acting.publish()
        return True

    def wait(self, timeout_s: float) -> None:
        """A serial run does not wait."""

    def close(self) -> None:
        """Closes the simulator."""
        self._many.close()

    def state(self) -> dict[str, Any] | None:
        """Everything that is not in shared memory; None if the simulator cannot say where it is."""
        simulator = self._tensors.state()
        if simulator is None:
            return None
        ended = None if self._last_ended is None else self._last_ended.tolist()
        return (
            {name: getattr(self, f"_{name}") for name in PLAIN}
            | self._actor.state()
            | {
                "device": self.device.type,
                "simulator": simulator,
                "simulator_device": str(self._tensors.device),
                "fields": self._fields,
                "memory": self._memory,
                "memories": self._memories,
                "finals": self._finals.state(),
                "last_ended": ended,
                "episodes": self._episodes.state(),
                "metrics": self._metrics.state(),
            }
        )

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken; shared memory is as it was then.

        Raises:
            EnvError: it was taken on another kind of device or with other trajectories, or the simulator refuses it.
        """
        fields = state["fields"]
        if state["device"] != self.device.type or shapes_of(fields) != shapes_of(self._fields):
            raise EnvError(f"{self._env_id} was on another device before, or had trajectories of another shape.")
        self._tensors.load_state(state["simulator"], torch.device(state["simulator_device"]))
        for name, room in fields.items():
            self._fields[name].copy_(room)
        for name in PLAIN:
            setattr(self, f"_{name}", state[name])
        self._memory.copy_(state["memory"])
        self._memories.copy_(state["memories"])
        self._finals.load_state(state["finals"], self.device)
        self._actor.load_state(state)
        self._last_ended = None if state["last_ended"] is None else np.array(state["last_ended"], bool)
        self._episodes.load_state(state["episodes"])
        self._metrics.load_state(state["metrics"])

    def _begin(self) -> bool:
        """Begins a trajectory with the observation that the last one ended on."""
        slots, own = self._slots, self._slots.topology.slots_of_group(0)
        slot = own[self._num_filled % len(own)]
        if slots.state(slot) is not SlotState.FREE or not slots.may_begin(0) or not self._actor.refresh_weights():
            return False
        slots.start_filling(slot)
        slots.policy_id[slot] = 0
        slots.policy_version[slot] = self._actor.version
        if self._last_slot is None:
            self.record.progress.enter(Phase.RESET)
            with blamed_on(self._env_id, "reset"):
                first = self._tensors.reset(self._seed)
            self._tensors.state()  # so that a wrong one is told now, and not when the first checkpoint needs it
            self._write(slot, 0, first)
            slots.is_new[slot] = True
        else:
            for room in self._observations.values():
                room[slot, 0].copy_(room[self._last_slot, self._rollout])
            slots.is_new[slot] = self._last_ended
        self._fields["initial_memory"][slot].copy_(self._memory)
        self._actor.draw_noises()
        self._slot, self._t = slot, 0
        self.record.begin_steps()
        self.record.lap("write")
        return True

    def _advance(self, slot: int, t: int) -> None:
        """One step of every copy."""
        answer, fields = self._actor.answer(slot, t), self._fields
        fields["actions"][slot, t].copy_(answer.action)
        fields["log_probs"][slot, t].copy_(answer.info.log_probability)
        fields["values"][slot, t].copy_(answer.info.value_prediction)
        for name, head in answer.info.heads.items():
            fields[name][slot, t].copy_(head)
        self._acting.lap("forward")
        self.record.lap("wait")
        self.record.progress.enter(Phase.STEP)
        with blamed_on(self._env_id, "step"):
            result = self._tensors.step(self._to_env(answer.action).to(self._tensors.device))
        self.record.lap("step")
        self._acting.lap("wait")
        observations, rewards, terminated, truncated, extras = result
        self._write(slot, t + 1, observations)
        for name, column in (("rewards", rewards), ("terminated", terminated), ("truncated", truncated)):
            fields[name][slot, t].copy_(column, non_blocking=True)
        self._finals.keep(t, extras, self._observations)
        self._metrics.add(t, self._tensors.metrics(extras))
        if self.network.state_size:
            self._memories[t].copy_(answer.state)
            over = fields["terminated"][slot, t] | fields["truncated"][slot, t]
            self._memory.copy_(answer.state.masked_fill(over[:, None], 0.0))
        self.record["env_steps"] += self._rows
        self._acting["samples"] += self._rows
        self.record.lap("write")

    def _write(self, slot: int, t: int, observations: Any) -> None:
        for key, leaf in self._leaves.items():
            there = self._observations[key][slot, t]
            seen = as_leaf(self._env_id, observations, leaf, there)
            there.copy_(self._categories.bounded(key, seen), non_blocking=True)

    def _finish(self, slot: int) -> None:
        """Values the last observation, closes the books of the trajectory and hands it to the learner."""
        last = self._actor.answer(slot, self._rollout).info
        self._fields["values"][slot, self._rollout].copy_(last.value_prediction)
        for name, head in last.heads.items():
            if self._slots.fields[name].axes is Axes.STEPS_AND_LAST:
                self._fields[name][slot, self._rollout].copy_(head)
        self._acting.lap("forward")
        self.record.lap("wait")
        fields = {name: room[slot] for name, room in self._fields.items()}
        fields["truncated"].logical_and_(~fields["terminated"])
        over = fields["terminated"] | fields["truncated"]
        rewards = fields["rewards"]
        seen = {key: room[slot] for key, room in self._observations.items()}
        expect_finite(self._env_id, {"reward": rewards, **{f"observation {key!r}": leaf for key, leaf in seen.items()}})
        expect_choices(self._info, seen)
        fields["final_values"].copy_(fields["values"][:-1])  # where the simulator gives nothing better
        for steps, rows, finals in self._finals.of_cut_episodes(fields["truncated"]):
            fields["final_values"][steps, rows] = self.network.values(finals, self._memories[steps, rows])
            if self._slots.last_observations:
                for key, final in finals.items():
                    fields[f"{LAST_OBSERVATIONS}{key}"][steps, rows] = final
                self._slots[HAS_LAST_OBSERVATION][slot][steps.cpu().numpy(), rows.cpu().numpy()] = True
        self._categories.expect_none_outside()
        found, names = self._episodes.ended(rewards, over, self._metrics.take())
        self._ring.append_many(0, found[found[:, 0] < REPORTED_COPIES], names)  # all count, and these are reported
        self.record["episodes"] += len(found)
        if self._config.reward_scale != 1 or self._config.reward_clip is not None:
            self._shape(rewards)
        self._last_ended = over[-1].cpu().numpy()  # waits for the device, so that the learner may read the slot
        self._slots.finish_filling(slot)
        self._num_filled += 1
        self._last_slot, self._slot = slot, None
        self.record.lap("write")

    def _shape(self, rewards: Tensor) -> None:
        rewards *= self._config.reward_scale
        if (limit := self._config.reward_clip) is not None:
            self.record["clipped"] += int((rewards.abs() > limit).sum())
            rewards.clamp_(-limit, limit)
