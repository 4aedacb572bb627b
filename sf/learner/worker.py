"""A learner: trains one policy on full slots and publishes it after every optimizer step.

In: full slots, save requests. Out: published weights, free slots, checkpoints, summaries. It owns the policy under
training, the optimizer and the statistics. It stops between two iterations and saves before it ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sf.arena import Arena
from sf.config import Config, samples_per_iteration, trajectories_per_dataset
from sf.control import ControlEnd
from sf.doorbell import Doorbell
from sf.learner.batch import Batch
from sf.learner.batcher import Batcher
from sf.learner.saving import Saver
from sf.learner.update import Update
from sf.messages import SaveRequest, TrainSummary
from sf.monitor.cadence import train_summary_interval_s
from sf.policy import ActorCritic
from sf.process import keep_freed_memory
from sf.records import learner_record
from sf.slots import Slots, Topology
from sf.spaces import EnvInfo
from sf.weights import PublishedWeights


class Learner:
    """One role object: `step` runs one training iteration if there is a dataset."""

    def __init__(
        self,
        policy_id: int,
        config: Config,
        topology: Topology,
        info: EnvInfo,
        seed: int,
        arena: Arena,
        weights: PublishedWeights,
        doorbell: Doorbell,
        workers: Sequence[Doorbell],
        inference: Sequence[Doorbell],
        supervisor: Doorbell,
        control: ControlEnd,
        summaries: Any,
        checkpoints: Path,
    ):
        """Builds the policy, or loads it from the newest checkpoint, and publishes it.

        Args:
            policy_id: the policy it trains.
            config: the whole configuration, because checkpoints carry it.
            topology: sizes of the shared memory.
            info: what the environments look like.
            seed: of the run.
            arena: the shared memory.
            weights: where this policy is published.
            doorbell: wakes this learner.
            workers: doorbells of all rollout workers.
            inference: doorbells of the inference workers of this policy.
            supervisor: doorbell of the supervisor.
            control: this end of the control connection.
            summaries: faster-fifo queue to the supervisor.
            checkpoints: directory of the checkpoints of this policy.

        Raises:
            CheckpointError: there are checkpoints and none can be used.
        """
        self.policy_id, self.doorbell = policy_id, doorbell
        self.workers, self.supervisor = list(workers), supervisor
        self.control, self.summaries = control, summaries
        self.frames_per_step = config.rollout.frames_per_step
        self.num_policies = topology.num_policies
        self.frames_wanted = config.run.train_for_env_steps
        self.frames_per_iteration = samples_per_iteration(config) * self.frames_per_step
        torch.manual_seed(seed + policy_id)
        torch.set_num_threads(1)  # the other cores belong to other roles
        keep_freed_memory()
        self.policy = ActorCritic(info, config.model)
        self.update = Update(self.policy, config.learner, topology.num_groups * topology.rows)
        self.saver = Saver(checkpoints, config, info, self.update)
        self.frames = self.saver.resume()
        self.batcher = Batcher(policy_id, Slots(topology, arena, info), trajectories_per_dataset(config))
        self.record = learner_record(arena, policy_id)
        self.record["env_steps"], self.record["version"] = self.frames, self.update.version
        self.record["lag_min"] = self.record["lag_avg"] = self.record["lag_max"] = -1.0
        self.record.publish()
        self.last_summary_s = -math.inf
        self.weights = weights
        self.weights.allocate(self.policy.flat.numel())
        self._flat = self.policy.flat.numpy()
        self.weights.publish(self._flat, self.update.version)
        for bell in inference:
            bell.ring()

    def step(self) -> bool:
        """Trains on one dataset; False while there is none or all frames are learned."""
        for message in self.control.poll():
            self._save(message)
        batch = self.batcher.next() if self.frames < self.frames_wanted else None
        if batch is None:
            return False
        self.record.lap("batch")
        self._train(batch)
        self.record.publish()
        return True

    def wait(self, timeout_s: float) -> None:
        """Sleeps until a slot is full or the supervisor wants something."""
        self.doorbell.wait(timeout_s)
        self.record.lap("wait")

    def close(self) -> None:
        """Saves the newest state."""
        self._save(SaveRequest("periodic", None))
        self.record.publish()

    def _train(self, batch: Batch) -> None:
        now = time.monotonic()
        self.update.want_summary = now - self.last_summary_s >= train_summary_interval_s(self.update.version)
        self.update.set_progress(self._progress())
        for step in self.update.steps(batch):
            self.record.lap("update")
            self.weights.publish(self._flat, step.version)
            record = self.record
            record["version"] = step.version
            record["lag_min"], record["lag_avg"], record["lag_max"] = step.lag_min, step.lag_avg, step.lag_max
            record.lap("publish")
            record.publish()
        self.frames += int(batch.valid.sum()) * self.frames_per_step
        self.record["env_steps"] = self.frames
        self.record["iterations"] += 1
        if self.batcher.release():
            for worker in self.workers:
                worker.ring()
        if self.update.want_summary:
            self.last_summary_s = now
            self.summaries.put(TrainSummary.of(self.policy_id, self.update.version, self.frames, self.update.summary()))
        if self.frames >= self.frames_wanted:
            self.supervisor.ring()
        self.record.lap("batch")

    def _progress(self) -> float:
        """(u - 1) / U for iteration u of U, counted in frames; one that comes after the U-th is like it."""
        num_iterations = max(1, self.frames_wanted // (self.frames_per_iteration * self.num_policies))
        return min(self.frames / self.frames_per_iteration, num_iterations - 1) / num_iterations

    def _save(self, request: SaveRequest) -> None:
        self.record.lap("wait")
        if saved := self.saver.save(self.policy_id, request, self.frames):
            self.control.send(saved)
            self.supervisor.ring()
        self.record.lap("save")
