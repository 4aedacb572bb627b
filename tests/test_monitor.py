"""The monitor with a clock of the test: what it prints when, and what it leaves on disk. Rows S7, A15 to A25."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as RichConsole

from sf.config import Config, LearnerConfig, RolloutConfig, RunConfig
from sf.ledger import Ledger
from sf.messages import CheckpointSaved
from sf.monitor import Console, Lag, Monitor, PolicySnapshot, Snapshot
from sf.monitor.cadence import Timer, train_summary_interval_s
from sf.monitor.episodes import EpisodeWindows
from sf.monitor.progress import ProgressBar
from sf.monitor.scalars import ScalarLog
from sf.monitor.time_shares import bottleneck, time_share_table
from sf.records import Episode
from tests.events import read_events

ROOT = Path(__file__).parent.parent

SECONDS = {
    "rollout-0": {"step": 3.0, "wait": 1.0},
    "inference-0-0": {"forward": 1.0, "wait": 3.0},
    "learner-0": {"update": 2.0, "wait": 2.0},
}


class Tape(Console):
    """A console that keeps its lines."""

    def __init__(self) -> None:
        super().__init__(now=lambda: datetime(2000, 1, 2, 3, 4, 5))
        self.text = ""
        self.print_with(self.keep)

    def keep(self, text: str) -> None:
        self.text += text

    def lines(self, containing: str = "") -> list[str]:
        return [line for line in self.text.splitlines() if containing in line]


def config(num_policies: int = 1, **run: Any) -> Config:
    return Config(
        run=RunConfig(env="Toy-v0", num_policies=num_policies, **run),
        rollout=RolloutConfig(num_workers=2, num_envs_per_worker=4, rollout=32),
        learner=LearnerConfig(batch_size=64, num_batches_per_epoch=4, num_epochs=3),
    )


class Run:
    """A monitor and a run that makes `fps` frames per second, polled every half second."""

    def __init__(self, path: Path, fps: int = 100, first_frames: int = 0, **settings: Any) -> None:
        self.path, self.fps, self.first_frames, self.tape = path, fps, first_frames, Tape()
        self.config = config(**settings)
        self.monitor = Monitor(self.config, path, num_agents=1, console=self.tape)
        self.now, self.policy = 1000.0, PolicySnapshot()
        self.is_finished = False

    def snapshot(self) -> Snapshot:
        new_frames = int((self.now - 1000.0) * self.fps)
        frames = self.first_frames + new_frames
        policy = replace(self.policy, frames=frames, new_frames=new_frames)
        policy = replace(policy, samples=frames, forwards=frames // 10, requests=frames // 5)
        return Snapshot(self.now, (policy,) * self.config.run.num_policies)

    def go(self, seconds: float, episodes: Callable[[], list[Episode]] = list) -> None:
        for _ in range(int(2 * seconds)):
            self.monitor.poll(self.snapshot(), episodes())
            self.now += 0.5

    def finish(self) -> None:
        self.is_finished = True
        self.monitor.poll(self.snapshot())
        self.monitor.finish("train_for_env_steps reached", 0, SECONDS, Ledger(7, 4, {"worker_died": 1}, 2, 0))


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts runs in the directory of the test and ends those that the test leaves open."""
    runs: list[Run] = []

    def start_run(**settings: Any) -> Run:
        runs.append(Run(tmp_path, **settings))
        return runs[-1]

    yield start_run
    for run in runs:
        if not run.is_finished:
            run.finish()


def frames_in(path: Path) -> list[int]:
    """Of every line of a metrics.jsonl."""
    return [json.loads(line)["frames"] for line in path.read_text().splitlines()]


def episode(reward: float = 1.25, policy_id: int = 0) -> Episode:
    return Episode(policy_id, reward, length=10, true_objective=2 * reward)


class TestConsole:
    def test_a15_a_report_every_five_seconds(self, start: Start, oracles: dict[str, Any]) -> None:
        run = start()
        run.go(20.5)
        reports = run.tape.lines("Fps is")
        found = [re.fullmatch(oracles["A15"]["regex"], line) for line in reports]
        assert [match and match["frames"] for match in found] == ["0", "500", "1000", "1500", "2000"]
        assert [match and match["fps10"] for match in found] == ["nan", "100.0", "100.0", "100.0", "100.0"]

    def test_a16_reward_line_follows_the_report_once_an_episode_has_ended(
        self, start: Start, oracles: dict[str, Any]
    ) -> None:
        run = start()
        run.go(4)
        assert run.tape.lines("reward") == []
        run.go(6.5, lambda: [episode()])
        lines = run.tape.lines()
        assert [("Fps" in line, "'1.250'" in line) for line in lines[1:]] == [(True, False), (False, True)] * 2
        assert re.fullmatch(oracles["A16"]["regex"], lines[-1])

    def test_a16_reward_is_the_mean_of_the_last_100_episodes(self) -> None:
        windows = EpisodeWindows(num_policies=2, stats_avg=3)
        windows.add([episode(-7.0)] * 50 + [episode(1.0)] * 60 + [episode(2.0)] * 40)
        assert windows.mean_rewards() == {0: pytest.approx((60 + 80) / 100)}
        assert windows.counts == [150, 0]
        windows.recall([episode(2.0)] * 100)
        assert (windows.mean_rewards(), windows.counts) == ({0: 2.0}, [150, 0])
        assert windows.scalars(0)["reward/reward_min"] == 2.0  # TensorBoard covers stats_avg episodes
        assert windows.scalars(1) == {}

    def test_a18_lag_of_the_newest_minibatch_is_shown(self, start: Start) -> None:
        run = start()
        run.go(4)
        run.policy = PolicySnapshot(lag=Lag(3.0, 3.0, 3.0))
        run.go(2)
        lags = [line.partition("lag: ")[2] for line in run.tape.lines("Fps is")]
        assert lags == ["(min: -1.0, avg: -1.0, max: -1.0)", "(min: 3.0, avg: 3.0, max: 3.0)"]

    def test_a20_frames_count_the_frameskip_and_samples_do_not(self, start: Start, oracles: dict[str, Any]) -> None:
        run = start()
        for second in range(11):
            policy = PolicySnapshot(frames=10_000 + 4 * 50 * second, samples=50 * second)
            run.monitor.poll(Snapshot(float(second), (policy,)))
        match = re.fullmatch(oracles["A15"]["regex"], run.tape.lines("Fps is")[-1])
        assert match
        assert (match["frames"], match["samples"]) == ("12000", "500")
        assert float(match["fps10"]) / float(match["throughput"][3:]) == pytest.approx(4)

    def test_a25_one_warning_when_the_lag_first_exceeds_30(self, start: Start) -> None:
        run = start()
        for lag in (29.0, 30.0, 31.25, 50.0, 10.0, 60.0):
            run.policy = PolicySnapshot(lag=Lag(0.0, lag, 2 * lag))
            run.go(1)
        (warning,) = run.tape.lines("Warning")
        assert warning.endswith(
            "Warning: the average policy lag is 31.2 optimizer steps; above 20 to 30 learning often suffers. One "
            "sampling round makes 12 optimizer steps here. A larger --batch_size, fewer --num_epochs or fewer "
            "--num_envs_per_worker lower the lag, --async_rl=False bounds it."
        )

    def test_checkpoints_are_announced(self, start: Start) -> None:
        run = start()
        run.monitor.checkpoint_saved(CheckpointSaved(0, "best", "x/checkpoint_1", 12))
        run.monitor.checkpoint_saved(CheckpointSaved(1, "periodic", "", 13, error="no space"))
        first, second = run.tape.lines()
        assert first.endswith("] Saved x/checkpoint_1 (best, policy_version 12)")
        assert second.endswith("] Warning: the checkpoint of policy 1 was not written: no space")

    def test_a15_last_lines_say_what_was_collected_and_where_time_went(self, start: Start) -> None:
        run = start()
        run.go(10)
        run.finish()
        *_, table, first, second, third, verdict, slots, collected = run.tape.lines()
        assert table == "Time shares:"
        assert first == "  rollout-0      step  75.0%  wait  25.0%"
        assert second == "  inference-0-0  wait  75.0%  forward  25.0%"
        assert third == "  learner-0      update  50.0%  wait  50.0%"
        assert verdict.startswith("The environments hold the run back")
        assert slots == "Slots: 7 allocated = 4 learned + 1 discarded (1 worker died) + 2 free"
        assert collected.endswith("] Collected {0: 1000}, FPS: 100.0")

    def test_fault_e5_lost_output_does_not_change_the_exit_code(self) -> None:
        code = "from sf.monitor import Console; c = Console(); [c.line('x' * 1000) for _ in range(1000)]"
        reader, writer = os.pipe()
        process = subprocess.Popen([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        os.close(reader)
        assert process.communicate()[1] == b""
        assert process.returncode == 0


class TestCurves:
    def test_a22_tags_of_a_short_run(self, start: Start, tmp_path: Path) -> None:
        run = start()
        pids = {"learner-0": os.getpid(), "inference-0-0": os.getpid(), "rollout-0": 2**22 + 1}
        run.monitor.watch(lambda: pids, lambda: {"faults/restarts": 3.0})
        run.go(3, lambda: [episode()])
        run.monitor.train_summary(0, 200, 7, {"version_diff_min": 0.0, "loss": 0.5})
        run.finish()
        curves = read_events(tmp_path / ".summary" / "0")
        spreads = ("reward/reward", "len/len", "policy_stats/avg_true_objective")
        assert set(curves) == {
            *("perf/_fps", "perf/_sample_throughput"),
            *(f"{tag}{end}" for tag in spreads for end in ("", "_min", "_max")),
            *("stats/avg_request_count", "stats/step_policy", "stats/wait_policy"),
            *("stats/master_process_memory_mb", "stats/memory_learner", "stats/memory_policy_worker"),
            *("train/version_diff_min", "train/loss", "train/num_sgd_steps", "faults/restarts"),
        }
        assert curves["reward/reward"] == [(300, 1.25)]
        assert curves["policy_stats/avg_true_objective_max"] == [(300, 2.5)]
        assert curves["perf/_fps"] == [(300, 100.0)]
        assert curves["stats/avg_request_count"] == [(300, 2.0)]
        assert 10 < curves["stats/memory_learner"][0][1] < 10_000

    def test_a22_tag_without_a_source_is_absent(self, start: Start, tmp_path: Path) -> None:
        run = start(fps=0)
        run.go(11)
        run.finish()
        curves = set(read_events(tmp_path / ".summary" / "0"))
        assert curves == {"perf/_fps", "perf/_sample_throughput", "stats/master_process_memory_mb"}

    def test_a22_reported_stats_are_written(self, start: Start, tmp_path: Path) -> None:
        run = start()
        run.policy = PolicySnapshot(stats={"gpu_mem_learner": 123.0})
        run.finish()
        assert read_events(tmp_path / ".summary" / "0")["stats/gpu_mem_learner"] == [(0, 123.0)]

    def test_s7_one_directory_per_policy_and_steps_that_never_decrease(self, start: Start, tmp_path: Path) -> None:
        run = start(num_policies=2)
        run.go(12, lambda: [episode(), episode(policy_id=1)])
        run.monitor.train_summary(1, 900, 3, {"loss": 1.0})  # made before the last point of the averaged curves
        run.go(12, lambda: [episode(), episode(policy_id=1)])
        run.finish()
        assert sorted(path.name for path in (tmp_path / ".summary").iterdir()) == ["0", "1"]
        for policy in ("0", "1"):
            steps = [step for curve in read_events(tmp_path / ".summary" / policy).values() for step, _ in curve]
            assert steps
        second = read_events(tmp_path / ".summary" / "1")
        assert second["train/loss"] == [(1000, 1.0)]
        assert [step for step, _ in second["reward/reward"]] == [1000, 2000, 2400]

    def test_a23_averaged_curves_come_every_interval_and_start_with_the_first_entry(
        self, start: Start, tmp_path: Path
    ) -> None:
        run = start(experiment_summaries_interval=7, stats_avg=4)
        run.go(8, lambda: [episode(1.0)])
        run.go(14, lambda: [episode(3.0)])
        run.finish()
        curve = read_events(tmp_path / ".summary" / "0")["reward/reward"]
        assert curve == [(700, 1.0), (1400, 3.0), (2100, 3.0), (2200, 3.0)]

    def test_a23_train_summaries_grow_rarer_with_the_version(self) -> None:
        given = {0: 2.0, 50_000: 31.0, 100_000: 60.0, 550_000: 90.0, 1_000_000: 120.0, 10**9: 120.0}
        assert {version: train_summary_interval_s(version) for version in given} == given

    def test_timer_keeps_its_grid_and_leaves_out_what_was_missed(self) -> None:
        timer = Timer(5.0)
        due = [now for now in (0.0, 4.9, 5.1, 9.9, 10.0, 31.0, 34.9, 35.0) if timer.is_due(now)]
        assert due == [0.0, 5.1, 10.0, 31.0, 35.0]

    def test_metrics_hold_the_same_scalars(self, start: Start, tmp_path: Path) -> None:
        run = start()
        run.go(21, lambda: [episode()])
        run.monitor.train_summary(0, 2100, 7, {"loss": math.nan})
        run.finish()
        curves = read_events(tmp_path / ".summary" / "0")
        lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert {line["policy_id"] for line in lines} == {0}
        for tag, curve in curves.items():
            points = [(line["frames"], line[tag]) for line in lines if tag in line]
            assert [frames for frames, _ in points] == [frames for frames, _ in curve]
            for (_, value), (_, stored) in zip(points, curve, strict=True):
                assert stored == pytest.approx(value, rel=1e-6) if value is not None else math.isnan(stored)

    def test_a_second_run_adds_to_the_files_of_the_first(self, start: Start, tmp_path: Path) -> None:
        for first_frames in (0, 300):
            run = start(first_frames=first_frames)
            run.go(3, lambda: [episode()])
            run.finish()
        assert frames_in(tmp_path / "metrics.jsonl") == [300, 600]

    def test_fault_d10_points_beyond_the_checkpoint_of_a_run_that_was_killed_are_made_once(
        self, start: Start, tmp_path: Path
    ) -> None:
        killed, path = start(num_policies=2), tmp_path / "metrics.jsonl"
        killed.go(31, lambda: [episode()])
        killed.finish()
        assert frames_in(path) == [1000, 1000, 2000, 2000, 3000, 3000, 3100, 3100]
        with path.open("a") as lines:
            lines.write('{"time_s": 1.0, "policy_id": 0, "fra')
        resumed = start(first_frames=1500, num_policies=2)
        resumed.go(11, lambda: [episode()])
        resumed.finish()
        assert frames_in(path) == [1000, 1000, 2500, 2500, 2600, 2600]

    def test_fault_d10_what_is_learned_before_the_first_look_belongs_to_this_start(
        self, start: Start, tmp_path: Path
    ) -> None:
        """The supervisor may look late."""
        killed = start()
        killed.go(31)
        killed.finish()
        resumed = start(first_frames=1500)
        resumed.now += 8.0
        resumed.go(11)
        resumed.finish()
        assert frames_in(tmp_path / "metrics.jsonl") == [1000, 3300, 3400]
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert (summary["new_frames"], summary["fps"]) == (1900, 100.0)

    def test_fault_d2_disk_that_fails_costs_the_curves_and_one_warning(self, tmp_path: Path) -> None:
        warnings: list[str] = []
        log = ScalarLog(tmp_path / "gone", warnings.append)
        for frames in range(3):
            log.write(0, frames, {"a/b": 1.0})
        log.close()
        (warning,) = warnings
        assert re.fullmatch(
            r"Warning: curves are no longer written to .*gone: .*No such file.*\. Training goes on\.", warning
        )

    def test_curves_of_runs_that_follow_each_other_within_a_second_are_kept(self, tmp_path: Path) -> None:
        for frames in range(12):
            log = ScalarLog(tmp_path, print)
            log.write(0, frames, {"a/b": 1.5})
            log.close()
        assert read_events(tmp_path / ".summary" / "0") == {"a/b": [(frames, 1.5) for frames in range(12)]}

    def test_curves_are_written_without_torch(self, tmp_path: Path) -> None:
        code = (
            "import sys, pathlib; from sf.monitor.scalars import ScalarLog; "
            "log = ScalarLog(pathlib.Path(sys.argv[1]), print); log.write(0, 5, {'a/b': 1.5}); log.close(); "
            "import sf.monitor; print('torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"
        assert read_events(tmp_path / ".summary" / "0") == {"a/b": [(5, 1.5)]}


class TestEnd:
    def test_summary_of_the_run(self, start: Start, tmp_path: Path) -> None:
        run = start()
        run.go(10, lambda: [episode()])
        run.policy = PolicySnapshot(version=7, lag=Lag(0.0, 1.5, 4.0))
        run.finish()
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert summary == {
            "exit_reason": "train_for_env_steps reached",
            "exit_code": 0,
            "frames": 1000,
            "env_steps": 1000,
            "new_frames": 1000,
            "wall_time_s": 10.0,
            "fps": 100.0,
            "policies": [
                {
                    "frames": 1000,
                    "samples": 1000,
                    "policy_version": 7,
                    "lag": {"min": 0.0, "avg": 1.5, "max": 4.0},
                    "reward": 1.25,
                    "episodes": 20,
                }
            ],
            "seconds": SECONDS,
            "slots": {"allocated": 7, "learned": 4, "discarded": {"worker_died": 1}, "free": 2, "in_flight": 0},
            "faults": {},
        }

    def test_directory_that_has_gone_does_not_hide_the_end(self, tmp_path: Path) -> None:
        run = Run(tmp_path / "gone")
        run.finish()
        assert len(run.tape.lines("summary.json was not written to")) == 1
        assert run.tape.lines("Collected")

    @pytest.mark.parametrize(
        ("busy", "verdict"),
        [
            ((0.9, 0.2, 0.7), "The environments hold the run back: add --num_workers if cores are free."),
            ((0.5, 0.8, 0.7), "Inference holds the run back: give it larger groups with more --num_envs_per_worker."),
            ((0.5, 0.2, 0.7), "Training holds the run back: lower --num_epochs or take a larger --batch_size."),
            ((0.5, 0.2, 0.4), "No role holds the run back (busy: rollout 50%, inference 20%, learner 40%): they wait"),
        ],
    )
    def test_bottleneck_is_the_role_that_waits_least(self, busy: tuple[float, float, float], verdict: str) -> None:
        names = ("rollout-0", "inference-0-0", "learner-0")
        seconds = {name: {"work": share, "wait": 1 - share} for name, share in zip(names, busy, strict=True)}
        seconds["rollout-1"] = seconds["rollout-0"]
        assert bottleneck(seconds).startswith(verdict)

    def test_time_shares_of_processes_that_never_reported(self) -> None:
        assert time_share_table({"rollout-0": {"step": 0.0, "wait": 0.0}}) == ""
        assert bottleneck({"rollout-0": {"step": 0.0}}) == "No process has reported where its time went."


ON_A_TERMINAL = """
import sys, pathlib
from sf.monitor import Monitor, PolicySnapshot, Snapshot
from sf.ledger import Ledger
from tests.test_monitor import SECONDS, config
monitor = Monitor(config(), pathlib.Path(sys.argv[1]), num_agents=1)
for second in range(10):
    monitor.poll(Snapshot(float(second), (PolicySnapshot(frames=100 * second),)))
monitor.finish("done", 0, SECONDS, Ledger(1, 1, {}, 0, 0))
"""


def start_on_terminal(path: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A monitor in a process of its own whose output is a terminal; the other end of the terminal."""
    master, slave = os.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "160"}
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, str(path)], stdout=slave, env=environment, cwd=ROOT
    )
    os.close(slave)
    return process, master


def read_terminal(master: int) -> str:
    """Everything that was written to a terminal until its last writer ended."""
    data = b""
    with contextlib.suppress(OSError):  # EIO is how a terminal says end of file
        while piece := os.read(master, 1 << 16):
            data += piece
    os.close(master)
    return data.decode()


class TestProgressBar:
    def test_bar_on_a_terminal_shows_reward_rate_and_time_left(self) -> None:
        screen = io.StringIO()
        console = RichConsole(file=screen, force_terminal=True, width=160, color_system=None)
        bar = ProgressBar(RunConfig(env="Toy-v0", train_for_env_steps=1000), console)
        bar.update(250, 5.0, 50.0, {0: 21.5}, 3.25)
        bar.print_above("[2000-01-02] [bold]a line[/bold] that is longer than the screen" + "." * 150 + "\n")
        bar.close()
        shown = screen.getvalue()
        assert "25%" in shown
        assert "250 frames, 50 FPS, reward 21.5, lag 3.2" in shown
        assert "[2000-01-02] [bold]a line[/bold] that is longer than the screen" + "." * 150 in shown

    def test_bar_of_a_run_without_end_has_no_percentage(self) -> None:
        screen = io.StringIO()
        bar = ProgressBar(RunConfig(env="Toy-v0"), RichConsole(file=screen, force_terminal=True, width=160))
        bar.update(0, 0.0, math.nan, {}, -1.0)
        bar.close()
        assert "0 frames, nan FPS" in screen.getvalue()
        assert "lag" not in screen.getvalue()

    def test_monitor_on_a_terminal_keeps_the_bar_below_the_lines(self, tmp_path: Path) -> None:
        process, master = start_on_terminal(tmp_path)
        shown = read_terminal(master)
        assert process.wait() == 0
        assert "Total num frames: 500" in shown
        assert "500 frames, 100 FPS" in shown
        assert shown.rstrip().endswith("Collected {0: 900}, FPS: 100.0")

    def test_line_of_another_process_takes_the_place_of_the_bar(self) -> None:
        master, slave = os.openpty()
        code = "from sf.monitor import Console; Console().plain('Updated weights')"
        subprocess.run([sys.executable, "-c", code], stdout=slave, check=True)
        os.close(slave)
        assert read_terminal(master) == "\r\x1b[2KUpdated weights\r\n"

    def test_fault_e5_terminal_that_goes_away_does_not_stop_the_run(self, tmp_path: Path) -> None:
        process, master = start_on_terminal(tmp_path)
        os.close(master)
        assert process.wait() == 0
        assert json.loads((tmp_path / "summary.json").read_text())["frames"] == 900

    def test_plain_lines_off_a_terminal(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        monitor = Monitor(config(), tmp_path, num_agents=1)
        monitor.poll(Snapshot(0.0, (PolicySnapshot(),)))
        monitor.poll(Snapshot(5.0, (PolicySnapshot(),)))
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2
        assert all("\x1b" not in line and "Fps is" in line for line in lines)
