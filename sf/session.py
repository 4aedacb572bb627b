"""What the main process sees and decides while a run lasts: reports, checkpoints' schedule, and when it ends.

It reads the records that the roles keep and talks to the learners; it knows nothing of processes, so that the same
session serves a run with many processes and a run with one.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from queue import Empty

from sf.config import Config
from sf.errors import ExperimentError
from sf.messages import CheckpointSaved, SaveKind, SaveRequest
from sf.monitor import Lag, Monitor, PolicySnapshot, Snapshot
from sf.records import (
    INFERENCE_ACTIVITIES,
    LEARNER_ACTIVITIES,
    ROLLOUT_ACTIVITIES,
    Episode,
    EpisodeRing,
    inference_record,
    learner_record,
    rollout_record,
)
from sf.wiring import Shared

POLL_S = 0.1
"""How often the records are read; nothing on the way of a sample waits for it."""
EPISODES_FOR_BEST = 100
"""A mean over fewer episodes says too little to call a checkpoint the best one."""


class ExitReason(enum.Enum):
    """Why a run ended in order."""

    ENV_STEPS = "train_for_env_steps reached"
    SECONDS = "train_for_seconds reached"
    REWARD = "stop_at_reward reached"
    SIGINT = "stopped by SIGINT"
    SIGTERM = "stopped by SIGTERM"


class Session:
    """Polled by the main loop; `poll` returns the reason to stop, or None."""

    def __init__(self, config: Config, shared: Shared, monitor: Monitor, pids: Callable[[], Mapping[str, int]]):
        """Starts the clocks.

        Args:
            config: resolved.
            shared: what the roles share.
            monitor: shows and writes.
            pids: process id by name, of the processes that are alive.
        """
        self.config, self.shared, self.monitor, self.pids = config, shared, monitor, pids
        topology, arena = shared.topology, shared.arena
        per_policy = topology.inference_per_policy
        self.rollouts = {f"rollout-{i}": rollout_record(arena, i) for i in range(topology.num_workers)}
        self.inferences = [
            {f"inference-{p}-{j}": inference_record(arena, p * per_policy + j) for j in range(per_policy)}
            for p in range(topology.num_policies)
        ]
        self.learners = [learner_record(arena, p) for p in range(topology.num_policies)]
        self.rings = [EpisodeRing(arena, i) for i in range(topology.num_workers)]
        self.best_reward = [-float("inf")] * topology.num_policies
        self.last_saved: dict[int, CheckpointSaved] = {}
        self.started_s = time.monotonic()
        self._due = {kind: self.started_s + every for kind, every in self._save_intervals().items()}

    def poll(self) -> ExitReason | None:
        """Reads everything once and does what is due."""
        now = time.monotonic()
        self._take_messages()
        snapshot = self.snapshot(now)
        self.monitor.poll(snapshot, self._new_episodes())
        self._request_saves(now)
        return self._reason_to_stop(snapshot)

    def finish(self, exit_reason: str) -> None:
        """Reads what came last and writes how the run ended.

        Raises:
            ExperimentError: the final checkpoint could not be written.
        """
        self._take_messages()
        self.monitor.finish(self.snapshot(time.monotonic()), exit_reason, self._new_episodes())
        if failed := [saved.error for saved in self.last_saved.values() if saved.error]:
            raise ExperimentError(f"The final checkpoint was not written: {'; '.join(failed)}")

    def snapshot(self, now: float) -> Snapshot:
        """The counters of all processes at this moment."""
        inferences = [{name: record.read() for name, record in records.items()} for records in self.inferences]
        learners = [record.read() for record in self.learners]
        seconds = {name: _shares(record.read(), ROLLOUT_ACTIVITIES) for name, record in self.rollouts.items()}
        for records in inferences:
            seconds |= {name: _shares(counters, INFERENCE_ACTIVITIES) for name, counters in records.items()}
        for policy_id, counters in enumerate(learners):
            seconds[f"learner-{policy_id}"] = _shares(counters, LEARNER_ACTIVITIES)
        policies = tuple(
            _policy_snapshot(learner, list(records.values()))
            for learner, records in zip(learners, inferences, strict=True)
        )
        return Snapshot(now, policies, seconds, self.pids())

    def _new_episodes(self) -> list[Episode]:
        return [episode for ring in self.rings for episode in ring.new_episodes()]

    def _take_messages(self) -> None:
        try:
            for summary in self.shared.summaries.get_many_nowait():
                self.monitor.train_summary(summary.policy_id, summary.frames, summary.scalars)
        except Empty:
            pass
        for control in self.shared.controls:
            for saved in control.poll():
                assert isinstance(saved, CheckpointSaved), saved
                self.last_saved[saved.policy_id] = saved
                self.monitor.checkpoint_saved(saved)

    def _save_intervals(self) -> dict[SaveKind, float]:
        run = self.config.run
        intervals: dict[SaveKind, float] = {"periodic": run.save_every_sec, "best": run.save_best_every_sec}
        if run.save_milestones_sec > 0:
            intervals["milestone"] = run.save_milestones_sec
        return intervals

    def _request_saves(self, now: float) -> None:
        for kind, every in self._save_intervals().items():
            if now < self._due[kind]:
                continue
            self._due[kind] = now + every
            for policy_id, control in enumerate(self.shared.controls):
                reward = self._mean_reward(policy_id)
                if kind == "best":
                    if reward is None or reward <= self.best_reward[policy_id]:
                        continue
                    self.best_reward[policy_id] = reward
                control.send(SaveRequest(kind, reward))
                self.shared.learner_bells[policy_id].ring()

    def _mean_reward(self, policy_id: int) -> float | None:
        episodes = self.monitor.episodes
        if episodes.counts[policy_id] < EPISODES_FOR_BEST:
            return None
        return episodes.mean_rewards()[policy_id]

    def _reason_to_stop(self, snapshot: Snapshot) -> ExitReason | None:
        run = self.config.run
        if snapshot.frames >= run.train_for_env_steps:
            return ExitReason.ENV_STEPS
        if snapshot.time_s - self.started_s >= run.train_for_seconds:
            return ExitReason.SECONDS
        if run.stop_at_reward is not None and self.monitor.episodes.reaches(run.stop_at_reward):
            return ExitReason.REWARD
        return None


Counters = dict[str, float]


def _policy_snapshot(learner: Counters, inferences: list[Counters]) -> PolicySnapshot:
    total = {name: sum(counters[name] for counters in inferences) for name in inferences[0]}
    return PolicySnapshot(
        frames=int(learner["env_steps"]),
        version=int(learner["version"]),
        lag=Lag(learner["lag_min"], learner["lag_avg"], learner["lag_max"]),
        samples=int(total["samples"]),
        requests=int(total["requests"]),
        forwards=int(total["forwards"]),
        forward_s=total["forward"],
        wait_s=total["wait"],
    )


def _shares(counters: Counters, activities: tuple[str, ...]) -> dict[str, float]:
    return {activity: counters[activity] for activity in activities}
