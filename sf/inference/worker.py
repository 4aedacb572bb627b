"""An inference worker: one forward pass for everything that waits.

In: requests of the groups it serves, published weights. Out: actions, their log-probabilities, values and the version
that computed them, written in place. It owns a copy of the policy and is woken by requests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sf.arena import Arena, Array
from sf.config import ModelConfig
from sf.doorbell import Doorbell
from sf.learner.reporter import REFRESHES_PER_LINE, weight_line
from sf.monitor.console import Console
from sf.policy import ActorCritic, CollectPolicy, PolicyStep, TimeStep
from sf.records import inference_record
from sf.slots import Requests, Slots, Topology
from sf.spaces import EnvInfo
from sf.weights import NOTHING_PUBLISHED, PublishedWeights


@dataclass(frozen=True)
class Task:
    """Rows of one group that this forward pass serves: a step to act on, or the last observation to value."""

    group: int
    request: int
    slot: int
    t: int
    rows: Array | None
    """Indices of the rows of this worker's policy; None for all of them."""


class InferenceWorker:
    """One role object: `step` serves the groups that wait, `wait` sleeps until one does."""

    def __init__(
        self,
        policy_id: int,
        index: int,
        config: ModelConfig,
        topology: Topology,
        info: EnvInfo,
        seed: int,
        arena: Arena,
        weights: PublishedWeights,
        doorbell: Doorbell,
        workers: Sequence[Doorbell],
        incarnation: int = 0,
    ):
        """Builds the policy; its weights come with the first publication.

        Args:
            policy_id: the policy it acts for.
            index: among the inference workers of that policy.
            config: of the model.
            topology: sizes of the shared memory.
            info: what the environments look like.
            seed: of the run.
            arena: the shared memory.
            weights: what the learner of this policy publishes.
            doorbell: wakes this worker.
            workers: doorbells of all rollout workers.
            incarnation: how many workers have had this place before; a successor draws other actions.
        """
        self.policy_id = policy_id
        self.topology, self.workers, self.doorbell = topology, list(workers), doorbell
        self.console = Console()
        torch.set_num_threads(1)  # the other cores belong to other roles
        self.network = ActorCritic(info, config)
        # The memory is that of `_gather_memory`, which knows where episodes begin; the slots check what goes in.
        self.policy = CollectPolicy(
            self.network, emit_log_probability=True, automatic_state_reset=False, validate_args=False
        )
        self.weights, self.version = weights, NOTHING_PUBLISHED
        self._flat = self.network.flat.numpy()
        entropy = [seed, policy_id, index, incarnation] if incarnation else [seed, policy_id, index]
        self.generator = torch.Generator().manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
        self.slots, self.requests = Slots(topology, arena, info), Requests(topology, arena)
        served = [g for w in topology.workers_of_inference(index) for g in topology.groups_of_worker(w)]
        self.groups = np.array(served, np.int64)
        self.record = inference_record(arena, policy_id * topology.inference_per_policy + index)

    def step(self) -> bool:
        """Serves every group that waits; False if none does."""
        waits = self.requests.request[self.groups] != self.requests.answered[self.groups, self.policy_id]
        if not waits.any() or not self._refresh_weights():
            return False
        tasks = [self._task(group) for group in self.groups[waits].tolist()]
        finals = [
            (task, self._final_rows(task)) for task in tasks if self.slots.has_final_observation[task.group].any()
        ]
        observations, counts = self._gather(tasks, finals)
        memory = self._gather_memory(tasks, finals) if self.topology.memory_size else ()
        self.record.lap("gather")
        chosen = self.policy.action(TimeStep((), (), (), observations), memory, self.generator)
        self.record.lap("forward")
        self._scatter(tasks, finals, counts, chosen)
        self._answer(tasks)
        return True

    def wait(self, timeout_s: float) -> None:
        """Sleeps until a group asks."""
        self.doorbell.wait(timeout_s)
        self.record.lap("wait")

    def close(self) -> None:
        """Nothing to close: all that it holds is memory."""

    def state(self) -> dict[str, Any]:
        """What a resumed run needs beside shared memory."""
        return {"generator": self.generator.get_state().tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""
        self.generator.set_state(torch.tensor(state["generator"], dtype=torch.uint8))

    def _refresh_weights(self) -> bool:
        """Takes newer weights if there are any; False while there are none at all."""
        newest = self.weights.version
        if newest != self.version:
            started = time.perf_counter()
            self.version = self.weights.read_into(self._flat)
            self.record["refresh_seconds"] += time.perf_counter() - started
            self.record["refreshes"] += 1
            if (refreshes := int(self.record["refreshes"])) % REFRESHES_PER_LINE == 0:
                seconds = self.record["refresh_seconds"] / refreshes
                self.console.line(weight_line(self.policy_id, self.version, seconds))
            self.record.lap("weights")
        return newest != NOTHING_PUBLISHED

    def _task(self, group: int) -> Task:
        request, slot, t = (int(x[group]) for x in (self.requests.request, self.requests.slot, self.requests.step))
        rows = None
        if self.topology.num_policies > 1:
            # The last observation belongs to the policy that acted before it.
            rows = np.flatnonzero(self.slots.policy_id[slot, min(t, self.topology.rollout - 1)] == self.policy_id)
        return Task(group, request, slot, t, rows)

    def _final_rows(self, task: Task) -> Array:
        """Rows whose episode was cut in the step before and whose final observation this policy must value."""
        cut = self.slots.has_final_observation[task.group]
        return np.flatnonzero(cut & (self.slots.policy_id[task.slot, task.t - 1] == self.policy_id))

    def _gather(self, tasks: list[Task], finals: list[tuple[Task, Array]]) -> tuple[dict[str, torch.Tensor], list[int]]:
        """The observations of all tasks, then the final ones; and how many rows each task has."""
        observations = {}
        counts: list[int] = []
        for key, stored in self.slots.observations.items():
            parts = [
                stored[task.slot, task.t] if task.rows is None else stored[task.slot, task.t, task.rows]
                for task in tasks
            ]
            counts = [len(part) for part in parts]
            parts += [self.slots.final_observations[key][task.group, rows] for task, rows in finals]
            observations[key] = torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))
        return observations, counts

    def _gather_memory(self, tasks: list[Task], finals: list[tuple[Task, Array]]) -> torch.Tensor:
        """[B, S] in the same order: zeros where an episode begins; before the reset for final observations."""
        parts = []
        for task in tasks:
            rows = slice(None) if task.rows is None else task.rows
            memory = self.slots.memory[task.group, task.request % 2, rows]
            if task.t > 0:
                memory = np.where(self.slots.ended(task.slot, task.t - 1)[rows, None], 0, memory)
            parts.append(memory)
        parts += [self.slots.memory[task.group, task.request % 2, rows] for task, rows in finals]
        return torch.from_numpy(np.concatenate(parts))

    def _scatter(
        self,
        tasks: list[Task],
        finals: list[tuple[Task, Array]],
        counts: list[int],
        chosen: PolicyStep,
    ) -> None:
        actions, log_probs, values = (
            x.numpy() for x in (chosen.action, chosen.info.log_probability, chosen.info.value_prediction)
        )
        slots, start = self.slots, 0
        for task, count in zip(tasks, counts, strict=True):
            stop = start + count
            at = (task.slot, task.t) if task.rows is None else (task.slot, task.t, task.rows)
            slots.values[at] = values[start:stop]
            if task.t < self.topology.rollout:
                slots.actions[at] = actions[start:stop]
                slots.log_probs[at] = log_probs[start:stop]
                slots.policy_version[at] = self.version
                self.record["samples"] += count
            if self.topology.memory_size:
                self._leave_memory(task, chosen.state[start:stop].numpy())
            start = stop
        for task, rows in finals:
            slots.final_values[task.slot, task.t - 1, rows] = values[start : start + len(rows)]
            start += len(rows)

    def _leave_memory(self, task: Task, following: Array) -> None:
        """What the next request takes; a request for values only has taken no step."""
        memory = self.slots.memory[task.group]
        rows = slice(None) if task.rows is None else task.rows
        taken, left = task.request % 2, (task.request + 1) % 2
        memory[left, rows] = following if task.t < self.topology.rollout else memory[taken, rows]

    def _answer(self, tasks: list[Task]) -> None:
        """Says so after everything is written, and wakes each rollout worker once."""
        for task in tasks:
            self.requests.answered[task.group, self.policy_id] = task.request
        for worker in {self.topology.worker_of_group(task.group) for task in tasks}:
            self.workers[worker].ring()
        self.record["requests"] += len(tasks)
        self.record["forwards"] += 1
        self.record.lap("scatter")
        self.record.publish()
