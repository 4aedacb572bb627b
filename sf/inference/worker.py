"""An inference worker: one forward pass for everything that waits.

In: requests of the groups it serves, published weights. Out: actions, their log-probabilities, values and the version
that computed them, written in place. It owns a copy of the policy and is woken by requests. Rollout workers that act
for themselves have a `sf.inference.small_worker` instead.

Between two forward passes the caches lose most of the data for the next one. So even a simple operation on an array
takes several microseconds the first time, and the number of different operations counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sf.config import Config
from sf.inference.actors import ActingCopy, Answers
from sf.inference.bells import InferenceBells
from sf.inference.network_actor import NetworkActor
from sf.nets.lasting_noise import lasting_noise
from sf.shared.arena import Array
from sf.shared.context import RunContext
from sf.shared.records import inference_record
from sf.shared.weights import NOTHING_PUBLISHED, PublishedWeights

ALL = slice(None)
REFRESHES_PER_NOTE = 10
"""Times that new weights are taken between two looks at the memory of an accelerator."""


class Task(NamedTuple):
    """Rows of one group that this forward pass serves: a step to act on, or the last observation to value."""

    group: int
    request: int
    slot: int
    t: int
    rows: Array | slice
    """Indices, or all of them."""
    num_rows: int


class InferenceWorker:
    """One role object: `step` serves the groups that wait, `wait` sleeps until one does."""

    tell: Callable[[Any], None]

    def __init__(
        self,
        context: RunContext,
        policy_id: int,
        index: int,
        config: Config,
        weights: PublishedWeights,
        bells: InferenceBells,
        incarnation: int = 0,
    ):
        """Builds the policy; its weights come with the first publication.

        Args:
            context: of all roles.
            policy_id: the policy it acts for.
            index: among the inference workers of that policy.
            config: of the run, resolved.
            weights: published by the learner of this policy.
            bells: that it hears or rings.
            incarnation: how many workers have had this place before; a successor draws other actions.

        Raises:
            ResourceError: there is no accelerator.
        """
        topology, info = context.topology, context.info
        self.policy_id = policy_id
        self.topology, self.bells = topology, bells
        place = policy_id * topology.inference_per_policy + index
        entropy = [context.sampling_seed, policy_id, index, incarnation]
        # Dealt in turn, first to learners; each rank of a machine begins with another one.
        accelerator = topology.num_policies * topology.num_learners + place + context.rank.local_rank
        on_gpu = config.run.device == "gpu"
        self.actor: ActingCopy = NetworkActor(info, config, entropy, context.arena, accelerator if on_gpu else None)
        self._lasting = lasting_noise(config, context, entropy)
        self.weights, self.version = weights, NOTHING_PUBLISHED
        self.slots, self.requests = context.slots(), context.requests()
        self.groups = [g for w in topology.workers_of_inference(index) for g in topology.groups_of_worker(w)]
        self.one_by_one = not config.run.async_rl and not config.run.serial_mode
        """Gives each group a forward pass and random numbers of its own, which leaves no trace of the order in which
        groups asked."""
        self._has_final_observation = self.slots.has_final_observation[self.groups[0] : self.groups[-1] + 1]
        requests = self.requests
        words = requests.request, requests.answered[:, policy_id], requests.slot, requests.step
        self._request, self._answered, self._slot, self._step = (array.data for array in words)
        self._fillers = self.slots.fillers[:, policy_id].data
        self.record = inference_record(context.arena, place)

    def step(self) -> bool:
        """Serves every group that waits; False if none does."""
        request, answered = self._request, self._answered
        waiting = [group for group in self.groups if request[group] != answered[group]]
        if not waiting or not self._refresh_weights():
            return False
        tasks = [self._task(group) for group in waiting]
        if not self.one_by_one:
            self._serve(tasks, None)
        else:
            for task in tasks:
                self._serve([task], task.group)
        return True

    def _serve(self, tasks: list[Task], stream: int | None) -> None:
        """One forward pass."""
        finals = self._finals(tasks)
        if not any(task.num_rows for task in (*tasks, *finals)):  # not every network takes no rows
            self._answer_without_rows(tasks)
            return
        observations = self._gather(tasks, finals)
        memory = self._gather_memory(tasks, finals) if self.topology.memory_size else ()
        self.record.lap("gather")
        answers = self.actor.act(observations, memory, stream, self._noise(tasks, finals))
        self.record.lap("forward")
        self._scatter(tasks, finals, answers)
        self._answer(tasks)

    def wait(self, timeout_s: float) -> None:
        """Sleeps until a group asks."""
        self.bells.own.wait(timeout_s)
        self.record.lap("wait")

    def close(self) -> None:
        """Nothing to close: all that it holds is memory."""

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs beside shared memory."""
        return self.actor.state() | ({} if self._lasting is None else {"lasting_noise": self._lasting.state()})

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""
        self.actor.load_state(state)
        if self._lasting is not None:
            self._lasting.load_state(state.get("lasting_noise", {}))

    def _refresh_weights(self) -> bool:
        """Takes newer weights if there are any; False while there are none at all."""
        newest = self.weights.version
        if newest != self.version:
            started = time.perf_counter()
            if self.version == NOTHING_PUBLISHED:
                self.actor.expect_weights(self.weights)
            self.version = self.weights.read(self.actor.take_weights)
            self.record["refresh_seconds"] += time.perf_counter() - started
            if self.record["refreshes"] % REFRESHES_PER_NOTE == 0:
                self.actor.note_memory(self.record)
            self.record["refreshes"] += 1
            self.record["weights_version"] = self.version
            self.record.lap("weights")
        return newest != NOTHING_PUBLISHED

    def _task(self, group: int) -> Task:
        request, slot, t = self.requests.observe(self._request, group), self._slot[group], self._step[group]
        if self.topology.every_row_acts:
            return Task(group, request, slot, t, ALL, self.topology.rows)
        # The last observation belongs to the policy that acted before it.
        rows = np.flatnonzero(self.slots.policy_id[slot, min(t, self.topology.rollout - 1)] == self.policy_id)
        return Task(group, request, slot, t, rows if len(rows) < self.topology.rows else ALL, len(rows))

    def _finals(self, tasks: list[Task]) -> list[Task]:
        """Rows whose episode was cut in the step before and whose final observation this policy must value."""
        finals: list[Task] = []
        if np.count_nonzero(self._has_final_observation):  # in any group, waiting or not
            for task in tasks:
                cut = self.slots.has_final_observation[task.group]
                rows = np.flatnonzero(cut & (self.slots.policy_id[task.slot, task.t - 1] == self.policy_id))
                if len(rows):
                    finals.append(task._replace(rows=rows, num_rows=len(rows)))
        return finals

    def _gather(self, tasks: list[Task], finals: list[Task]) -> dict[str, list[Array]]:
        """The observations of all tasks, then the final ones."""
        observations = {}
        for key, stored in self.slots.observations.items():
            parts = [stored[task.slot, task.t, task.rows] for task in tasks]
            parts += [self.slots.final_observations[key][task.group, task.rows] for task in finals]
            observations[key] = parts
        return observations

    def _gather_memory(self, tasks: list[Task], finals: list[Task]) -> list[Array]:
        """[B, S] in the same order: zeros where an episode begins; before the reset for final observations."""
        parts = []
        for task in tasks:
            memory = self.slots.memory[task.group, task.request % 2, task.rows]
            if task.t > 0:
                memory = np.where(self.slots.ended(task.slot, task.t - 1)[task.rows, None], 0, memory)
            parts.append(memory)
        parts += [self.slots.memory[task.group, task.request % 2, task.rows] for task in finals]
        return parts

    def _noise(self, tasks: list[Task], finals: list[Task]) -> Array | None:
        """[B, n] in the same order, where it lasts; any for the final observations, which are only valued."""
        if self._lasting is None:
            return None
        drawn = {task.group: self._lasting.draw(task.group, task.t < self.topology.rollout) for task in tasks}
        return np.concatenate([drawn[task.group][task.rows] for task in (*tasks, *finals)])

    def _scatter(self, tasks: list[Task], finals: list[Task], answers: Answers) -> None:
        """Writes what the policy says of all tasks, then the values of the final observations."""
        slots = self.slots
        actions, log_probs, values, memory, heads = answers
        start = num_samples = 0
        for group, _, slot, t, rows, num_rows in tasks:
            stop = start + num_rows
            slots.values[slot, t, rows] = values[start:stop]
            if t < self.topology.rollout:
                slots.actions[slot, t, rows] = actions[start:stop]
                slots.log_probs[slot, t, rows] = log_probs[start:stop]
                slots.policy_version[slot, t, rows] = self.version
                num_samples += num_rows - self._fillers[group]
            if heads:
                slots.write_heads(slot, t, rows, {name: head[start:stop] for name, head in heads.items()})
            start = stop
        if self.topology.memory_size:
            self._leave_memory(tasks, memory)
        for task in finals:
            stop = start + task.num_rows
            slots.final_values[task.slot, task.t - 1, task.rows] = values[start:stop]
            start = stop
        self.record["samples"] += num_samples

    def _leave_memory(self, tasks: list[Task], following: Array) -> None:
        """Leaves the recurrent state for the next request; a request for values only has taken no step."""
        start = 0
        for task in tasks:
            memory, taken, left = self.slots.memory[task.group], task.request % 2, (task.request + 1) % 2
            if task.t < self.topology.rollout:
                memory[left, task.rows] = following[start : start + task.num_rows]
            else:
                memory[left] = memory[taken]  # also of rows that are not valued: a dropped step is no end
            start += task.num_rows

    def _answer_without_rows(self, tasks: list[Task]) -> None:
        """No row of these tasks is one of this policy."""
        if self.topology.memory_size:
            self._leave_memory(tasks, np.zeros((0, self.topology.memory_size), np.float32))
        self._answer(tasks)

    def _answer(self, tasks: list[Task]) -> None:
        """Says so after everything is written, and wakes each rollout worker once, if it can be asleep."""
        for task in tasks:
            self.requests.publish(self._answered, task.group, task.request)
        for worker in {self.topology.worker_of_group(task.group) for task in tasks}:
            self.bells.workers[worker].ring()
        self.record["requests"] += len(tasks)
        self.record["forwards"] += 1
        self.record.lap("scatter")
        self.record.publish()
