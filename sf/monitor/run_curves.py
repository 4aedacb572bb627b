"""The curves of a run: when there is a point of them, and what it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from sf.config import Config
from sf.monitor.episodes import EpisodeWindows
from sf.monitor.lag_sight import LagCounted
from sf.monitor.lines import (
    FpsWindows,
    Throughput,
)
from sf.monitor.scalars import ScalarLog
from sf.monitor.snapshot import Snapshot
from sf.monitor.stats import InferenceStats, memory_scalars
from sf.monitor.user_curves import UserCurves
from sf.shared.cadence import Thinning
from sf.shared.messages import EvaluationDone

LEAST_BETWEEN_POINTS_S = 1.0
"""Least time between two points of the curves, where learners have nothing to say."""
SHARE_WITH_LEARNER = 1 / 80
"""Share of the time so far between two points with what a learner says, which makes them rarer by itself."""


class RunCurves:
    """Writes points of all curves of a policy, and of what its learner says alone in between."""

    def __init__(
        self, config: Config, scalars: ScalarLog, episodes: EpisodeWindows, on_problem: Callable[[str], None]
    ) -> None:
        """Writes nothing yet.

        Args:
            config: resolved.
            scalars: where points are written.
            episodes: the newest of each policy.
            on_problem: called with a sentence.
        """
        self._config, self._scalars, self._episodes = config, scalars, episodes
        policies = range(config.run.num_policies)
        self.fps, self.throughput = FpsWindows(), [Throughput() for _ in policies]
        self._lag_written = [LagCounted() for _ in policies]
        """As of the last point."""
        self._inference = [InferenceStats(config.run.stats_avg) for _ in policies]
        self._points = [Thinning() for _ in policies]
        self._said: dict[int, tuple[int, dict[str, float]]] = {}
        """Policy id to frames and values of what its learner has said since the last point."""
        self._pids: Callable[[], Mapping[str, int]] = dict
        self._faults: Callable[[], Mapping[str, float]] = dict
        self.further_scalars: Callable[[int], Mapping[str, float]] = lambda _: {}
        """Asked for further curves of a policy whenever there is a point."""
        self.user_curves = UserCurves(on_problem)
        """For callbacks."""
        self._first: Snapshot | None = None

    def watch(self, pids: Callable[[], Mapping[str, int]], faults: Callable[[], Mapping[str, float]]) -> None:
        """Says whom to ask for what is no part of a snapshot, see `Monitor.watch`."""
        self._pids, self._faults = pids, faults

    def begin(self, snapshot: Snapshot) -> None:
        """Remembers when training began, and forgets what is there beyond the frames that this start has found."""
        self._first = snapshot
        self._scalars.begin([policy.frames - policy.new_frames for policy in snapshot.policies])
        self._points = [Thinning(snapshot.time_s) for _ in self._points]

    def say(self, policy_id: int, frames: int, values: Mapping[str, float], newest: Snapshot | None) -> None:
        """Has the next point hold what a learner says of an optimizer step.

        Args:
            policy_id: of the learner.
            frames: that it has learned.
            values: by name, without ``train/``.
            newest: the last counters.
        """
        if newest is not None and self._said.get(policy_id, (frames,))[0] != frames:
            self.write_point(policy_id, newest)  # of an earlier step
        _, said = self._said.setdefault(policy_id, (frames, {}))
        said |= {f"train/{name}": value for name, value in values.items()}

    def record(self, snapshot: Snapshot) -> None:
        """Takes in the counters from which rates follow."""
        self.fps.record(snapshot.time_s, snapshot.frames)
        for index, policy in enumerate(snapshot.policies):
            self.throughput[index].record(snapshot.time_s, policy.samples)
            self._inference[index].record(policy)

    def write_what_is_due(self, policy_id: int, snapshot: Snapshot) -> None:
        """A point of all curves, or of what the learner has said alone."""
        points, interval_s = self._points[policy_id], self._config.run.experiment_summaries_interval
        if policy_id not in self._said:
            if points.is_due(snapshot.time_s, interval_s, LEAST_BETWEEN_POINTS_S):
                self.write_point(policy_id, snapshot)
        elif points.is_due(snapshot.time_s, interval_s, share=SHARE_WITH_LEARNER):
            self.write_point(policy_id, snapshot)
        else:
            frames, scalars = self._said.pop(policy_id)
            self._scalars.write(policy_id, frames, scalars)

    def write_point(self, policy_id: int, snapshot: Snapshot) -> None:
        """One point of all curves of a policy."""
        policy = snapshot.policies[policy_id]
        frames, scalars = self._said.pop(policy_id, (policy.frames, {}))
        scalars |= self._rates(policy_id, snapshot)
        scalars |= self._episodes.scalars(policy_id) | self._inference[policy_id].scalars()
        scalars |= memory_scalars(self._pids(), policy_id) | self.user_curves.take(policy_id)
        scalars |= self.further_scalars(policy_id)
        lag, self._lag_written[policy_id] = policy.lag_counted.since(self._lag_written[policy_id]), policy.lag_counted
        scalars |= lag.scalars()
        scalars |= {f"stats/{name}": value for name, value in policy.stats.items()}
        if policy_id == 0:  # of the whole run
            scalars |= self._faults()
            if self._config.rollout.reward_clip is not None:
                scalars["stats/clipped_rewards"] = snapshot.clipped_rewards
        self._scalars.write(policy_id, frames, scalars, {"lag/histogram": lag.counts})
        self._points[policy_id].made(snapshot.time_s)

    def write_evaluation(self, done: EvaluationDone) -> None:
        """The scores of an evaluation, at the frames where it began, which eval/frames tells as well."""
        scalars = {
            "eval/reward": done.reward,
            "eval/reward_std": done.reward_std,
            "eval/reward_min": done.reward_min,
            "eval/reward_max": done.reward_max,
            "eval/len": done.length,
            "eval/episodes": float(done.episodes),
            "eval/policy_version": float(done.version),
            "eval/frames": float(done.frames),
        }
        self._scalars.write(done.policy_id, done.frames, scalars)

    def _rates(self, policy_id: int, snapshot: Snapshot) -> dict[str, float]:
        """Per second: frames of the run and samples of the policy. A young run shows what it has."""
        assert self._first is not None
        elapsed_s, new = snapshot.time_s - self._first.time_s, snapshot.policies[policy_id].samples
        rates = {"perf/_fps": self.fps.values()[0], "perf/_sample_throughput": self.throughput[policy_id].value()}
        if math.isnan(rates["perf/_fps"]) and elapsed_s > 0:
            rates = {
                "perf/_fps": (snapshot.frames - self._first.frames) / elapsed_s,
                "perf/_sample_throughput": (new - self._first.policies[policy_id].samples) / elapsed_s,
            }
        return {tag: rate for tag, rate in rates.items() if not math.isnan(rate)}
