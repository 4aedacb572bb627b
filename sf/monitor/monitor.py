"""Everything a run shows while it goes on and leaves behind when it ends.

In: snapshots of the shared counters, finished episodes, and the learners' summaries. Out: lines and a bar on the
console, TensorBoard files, metrics.jsonl, summary.json. The supervisor calls `poll` as often as it likes, at least once
a second. The time comes from the snapshots, so nothing here looks at a clock. Nothing here stops a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sf.config import Config, samples_per_iteration
from sf.console import Console, output_may_be_lost
from sf.machine.cores import asked_s, usable_cores
from sf.machine.origin import Origin
from sf.monitor.beginning import EndlessEpisodes, nothing_learned, progress_of_first_batch
from sf.monitor.clipped_rewards import ClippedRewards
from sf.monitor.episodes import REWARD_EPISODES, EpisodeWindows
from sf.monitor.event_file import Facts
from sf.monitor.expected_lag import ExpectedLag
from sf.monitor.goal import GoalWaits, LeftOut
from sf.monitor.high_lag import HighLag
from sf.monitor.hints import Hint, Seen
from sf.monitor.lines import (
    REFRESHES_PER_LINE,
    REPORT_INTERVAL_S,
    agents_line,
    collected_line,
    evaluation_line,
    lag_line,
    report_line,
    reward_line,
    weight_line,
)
from sf.monitor.outcome import Reached
from sf.monitor.run_curves import RunCurves
from sf.monitor.run_summary import flags_of, run_summary, versions, write_run_summary
from sf.monitor.scalars import ScalarLog
from sf.monitor.screens import screen_for
from sf.monitor.settled import SettledEpisodes
from sf.monitor.snapshot import Snapshot
from sf.monitor.standstill import Standstill
from sf.monitor.time_shares import TURNS, Seconds, bottleneck, time_share_table
from sf.monitor.view import Screen, View
from sf.shared.cadence import Timer
from sf.shared.episodes import Episode
from sf.shared.ledger import Ledger
from sf.shared.messages import CheckpointSaved, EvaluationDone
from sf.shared.records import REPORTED_COPIES

DRAW_INTERVAL_S, DASHBOARD_INTERVAL_S = 0.5, 1.0


class Monitor:
    """Shows one run."""

    def __init__(
        self,
        config: Config,
        experiment_dir: Path,
        num_agents: int,
        console: Console | None = None,
        expected: ExpectedLag | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Opens nothing on disk yet.

        Args:
            config: resolved.
            experiment_dir: exists.
            num_agents: in one environment.
            console: prints the lines; by default standard output, with a bar if that is a terminal.
            expected: policy lag, to be shown beside the measured one at the end.
            origin: of the run, for its summary and TensorBoard.
        """
        self._config, self._directory, self._expected, self._origin = config, experiment_dir, expected, origin
        self._console = console or Console()
        self._screen: Screen | None = None
        self._replays = config.replay.replay == "uniform"
        if console is None and (screen := screen_for(config, self._console.line, self._replays)):
            self._screen = screen
            self._console.print_with(screen.print_above)
        policies = range(config.run.num_policies)
        self.episodes = EpisodeWindows(
            len(policies), config.run.stats_avg, config.run.stop_at_reward_episodes, num_agents
        )
        texts = {} if origin is None else origin.texts()
        self._scalars = ScalarLog(experiment_dir, self._console.line, Facts(texts, flags_of(config)))
        self.curves = RunCurves(config, self._scalars, self.episodes, self._console.line)
        self._has_dashboard = self._screen is not None and config.run.dashboard
        self._report_timer = Timer(REPORT_INTERVAL_S)
        self._draw_timer = Timer(DASHBOARD_INTERVAL_S if self._has_dashboard else DRAW_INTERVAL_S)
        self._refreshes_told = [0 for _ in policies]
        """Tens of refreshes of each policy at the last line about them."""
        self._pids: Callable[[], Mapping[str, int]] = dict
        self._faults: Callable[[], Mapping[str, float]] = dict
        self._seconds: Callable[[], Seconds] = dict
        self._first: Snapshot | None = None
        self._newest: Snapshot | None = None
        self._reported_s = -math.inf
        self.high_lag = HighLag(config, num_agents)
        self._needed = samples_per_iteration(config) * config.num_shares
        workers, envs = config.rollout.num_workers, config.rollout.num_envs_per_worker
        assert workers is not None
        assert envs is not None
        if config.rollout.vectorization == "tensors":
            envs = min(envs, REPORTED_COPIES)
        num_rows, size = workers * envs * num_agents, max(REWARD_EPISODES, config.run.stop_at_reward_episodes)
        self.settled = SettledEpisodes(len(policies), num_rows, size)
        """For decisions."""
        self._reached = Reached(config, self.episodes, self.settled)
        self._hints: tuple[Hint, ...] = (
            ClippedRewards(config.rollout.reward_clip),
            Standstill(samples_per_iteration(config)),
            EndlessEpisodes(workers * envs, num_agents),
            GoalWaits(config.run),
            LeftOut(),
        )
        self._has_nothing_left = False
        """Everything was learned before this start."""

    def watch(
        self,
        pids: Callable[[], Mapping[str, int]],
        faults: Callable[[], Mapping[str, float]],
        seconds: Callable[[], Seconds] = dict,
    ) -> None:
        """Says whom to ask for what is no part of a snapshot.

        Args:
            pids: of the processes whose memory is measured.
            faults: for curves about what broke.
            seconds: of each process by activity, for the dashboard.
        """
        self._pids, self._faults, self._seconds = pids, faults, seconds
        self.curves.watch(pids, faults)

    def begin(self, snapshot: Snapshot) -> None:
        """Remembers when training began, and forgets what curves have beyond the frames that this start has found."""
        self._first = snapshot
        self.curves.begin(snapshot)
        wanted = self._config.run.frame_limit
        if snapshot.frames >= wanted and not any(policy.iterations for policy in snapshot.policies):
            self._has_nothing_left = True
            self._console.line(
                f"{snapshot.frames} frames were learned before, and --train_for_env_steps={wanted} counts them. Raise "
                "it to go on, or begin anew with --restart_behavior=restart."
            )

    def poll(self, snapshot: Snapshot, episodes: Iterable[Episode] = ()) -> None:
        """Takes in what has happened and shows what is due."""
        if self._first is None:
            self.begin(snapshot)
        assert self._first is not None
        self._newest = snapshot
        self._take_in(episodes)
        if self._report_timer.is_due(snapshot.time_s):
            self._report(snapshot)
        for policy_id in range(0 if self._has_nothing_left else len(snapshot.policies)):
            self.curves.write_what_is_due(policy_id, snapshot)
        self.high_lag.look(snapshot)
        seen = Seen(self._first, snapshot, self.episodes, self.settled)
        for hint in self._hints:
            if sentence := hint.look(seen):
                self._console.line(sentence)
        if self._draw_timer.is_due(snapshot.time_s):
            self._draw(self._first, snapshot)

    def recall(self, episodes: Sequence[Episode]) -> None:
        """Takes in episodes from before this start, oldest first."""
        self.episodes.recall(episodes)
        self.settled.add(episodes)

    def _take_in(self, episodes: Iterable[Episode]) -> None:
        new = tuple(episodes)
        self.episodes.add(new)
        self.settled.add(new)

    def train_summary(self, policy_id: int, frames: int, values: Mapping[str, float]) -> None:
        """Has the next point hold what a learner says of an optimizer step: name to value, without ``train/``."""
        self.curves.say(policy_id, frames, values, self._newest)

    def evaluation_done(self, done: EvaluationDone) -> None:
        """Shows the scores of an evaluation and writes them."""
        self._console.line(evaluation_line(done))
        if done.episodes:
            self.curves.write_evaluation(done)

    def checkpoint_saved(self, saved: CheckpointSaved) -> None:
        """Says that a checkpoint is complete, or that it could not be written."""
        if saved.error:
            self._console.line(f"Warning: the checkpoint of policy {saved.policy_id} was not written: {saved.error}")
        elif saved.kind != "pool":  # of which the director tells more
            mark = "" if saved.version else ", untrained"
            self._console.line(f"Saved {saved.path} ({saved.kind}, policy_version {saved.version}{mark})")

    def finish(self, exit_reason: str, exit_code: int, seconds: Seconds, ledger: Ledger, wanted_s: float = 0.0) -> None:
        """Shows the end of the run and closes everything; the last `poll` has brought the newest counters.

        Args:
            exit_reason: why the run ended.
            exit_code: of the command.
            seconds: process name to activity to the time it took.
            ledger: what became of the trajectories.
            wanted_s: of cores that all processes together asked for.
        """
        first, last = self._first, self._newest
        assert first is not None
        assert last is not None
        self.close()
        if self._reported_s != last.time_s or self._has_dashboard:
            self._report(last)
        for policy_id in range(0 if self._has_nothing_left else len(last.policies)):
            self.curves.write_point(policy_id, last)
        self._scalars.close()
        summary = run_summary(first, last, self._config, self._reached.rewards(), self.episodes.counts, seconds)
        summary |= {"exit_reason": exit_reason, "exit_code": exit_code, "slots": ledger.to_json()}
        summary |= {"faults": dict(self._faults()), "versions": versions()}
        summary |= {} if self._expected is None else {"expected_lag": self._expected._asdict()}
        summary |= {} if self._origin is None else {"origin": self._origin.to_json()}
        try:
            write_run_summary(self._directory, summary)
        except OSError as error:
            self._console.line(f"Warning: summary.json was not written to {self._directory}: {error}")
        asked = wanted_s / max(last.time_s - first.time_s, 1e-9)
        verdict = TURNS if self._config.takes_turns else bottleneck(seconds, asked, usable_cores(), self._replays)
        if table := time_share_table(seconds):
            died = not last.has_learned and ledger.discarded.get("worker_died", 0)  # then nothing else held it back
            self._console.plain(f"Time shares:\n{table}" + ("" if died else f"\n{verdict}"))
        self._console.plain(ledger.line())
        frames = {policy: counters.frames for policy, counters in enumerate(last.policies)}
        if not (last.has_learned or self._has_nothing_left):
            self._console.line(nothing_learned(first, last, self._needed, ledger.discarded.get("worker_died", 0)))
        for policy_id, counters in enumerate(last.policies):
            if counters.lag_counted.steps:
                self._console.plain(lag_line(policy_id, counters.lag_counted, self._expected))
        self._console.line(collected_line(frames, summary["fps"]))
        self._console.line(self._reached.line(first, last, exit_reason, self._has_nothing_left))

    def close(self) -> None:
        """Gives the terminal back; `finish` does it too."""
        if self._screen is not None:
            self._console.print_with(None)
            with output_may_be_lost():
                self._screen.close()
            self._screen = None

    def _report(self, snapshot: Snapshot) -> None:
        """The lines that come every 5 s."""
        self._reported_s = snapshot.time_s
        self._tell_of_weights(snapshot)
        self.curves.record(snapshot)
        throughput = [policy.value() for policy in self.curves.throughput]
        samples = sum(policy.samples for policy in snapshot.policies)
        lag = snapshot.policies[0].lag
        if self._screen is None or not self._has_dashboard:  # it shows the same, until it is closed
            assert self._first is not None
            fps, has_learned = self.curves.fps.values(), snapshot.has_learned or snapshot.frames > self._first.frames
            if has_learned and not math.isnan(fps[0]):  # before, there are no rates and no lag
                self._console.line(report_line(fps, snapshot.frames, throughput, samples, lag))
                if rewards := self.episodes.mean_rewards():
                    self._console.line(reward_line(rewards))
                    if of_agents := agents_line(self._reached.by_agent()):
                        self._console.line(of_agents)
        if warning := self.high_lag.warning():
            self._console.line(warning)
        assert self._first is not None
        is_early = snapshot.time_s < self._first.time_s + REPORT_INTERVAL_S
        if not (is_early or self._has_nothing_left or snapshot.has_learned):
            self._console.line(progress_of_first_batch(snapshot, self._needed, self._config.rollout.steps))

    def _tell_of_weights(self, snapshot: Snapshot) -> None:
        for policy_id, policy in enumerate(snapshot.policies):
            tens = policy.refreshes // REFRESHES_PER_LINE
            if tens > self._refreshes_told[policy_id] and not self._has_dashboard:
                self._refreshes_told[policy_id] = tens
                self._console.line(weight_line(policy_id, policy.weights_version, policy.refresh_s))

    def _draw(self, first: Snapshot, snapshot: Snapshot) -> None:
        if self._screen is None:
            return
        view = View(
            elapsed_s=snapshot.time_s - first.time_s,
            frames=snapshot.frames,
            fps=self.curves.fps.values(),
            throughput=[throughput.value() for throughput in self.curves.throughput],
            rewards=self.episodes.mean_rewards(),
            lag=snapshot.policies[0].lag,
            faults=self._faults,
            seconds=self._seconds,
            asked_s=lambda: asked_s(self._pids().values()),
        )
        with output_may_be_lost():
            self._screen.update(view)
