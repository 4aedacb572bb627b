"""A wall clock that jumps, or is another one after a resume: points have an order, and durations are right."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from sf.monitor.scalars import ScalarLog
from sf.storage.experiment import MARKER
from sf.tools.report.runs import read_run
from sf.tools.tracking.points import Points
from tests.helpers.events import read_events


class Clocks:
    """Both clocks; a second of the run passes on both of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_s, self.monotonic_s = 1_000_000.0, 500.0
        monkeypatch.setattr(time, "time", lambda: self.wall_s)
        monkeypatch.setattr(time, "monotonic", lambda: self.monotonic_s)

    def tick(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds

    def start(self, path: Path, seconds: int, first_frames: int = 0) -> None:
        """A run that makes ten frames and a point per second."""
        log = ScalarLog(path, print)
        log.begin([first_frames])
        for second in range(1, seconds + 1):
            self.tick(1.0)
            log.write(0, first_frames + 10 * second, {"reward/reward": 1.0})
        log.close()


def sent_by(path: Path) -> list[int]:
    points = Points(path, "wandb")
    new = points.new()
    for point in new:
        points.note(point)
    return [point["frames"] for point in new]


@pytest.mark.parametrize("jump_s", [0.0, -3600.0, -30.0, 3600.0])
def test_points_after_a_resume_come_after_those_before(
    jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of those that the resume forgets, which a tracker has."""
    clocks = Clocks(monkeypatch)
    clocks.start(tmp_path, 6)
    assert sent_by(tmp_path) == [10, 20, 30, 40, 50, 60]
    clocks.wall_s += jump_s
    clocks.monotonic_s = 7.0  # of another machine
    clocks.start(tmp_path, 4, first_frames=30)
    assert sent_by(tmp_path) == [40, 50, 60, 70]
    times = [json.loads(line)["time_s"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert times == sorted(set(times))
    assert [frames for frames, _ in read_events(tmp_path / ".summary" / "0")["reward/reward"]][-4:] == [40, 50, 60, 70]


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_jump_within_a_start_changes_no_duration(
    jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, log = Clocks(monkeypatch), ScalarLog(tmp_path, print)
    for second in range(6):
        clocks.tick(1.0)
        clocks.wall_s += jump_s * (second == 3)
        log.write(0, second, {"reward/reward": 1.0})
    log.close()
    (run,) = read_run(tmp_path)
    assert run.curve("reward/reward").seconds.tolist() == pytest.approx([0, 1, 2, 3, 4, 5])


def test_a_report_on_lines_that_go_back_has_no_negative_time(tmp_path: Path) -> None:
    """As files of an earlier version may have them."""
    times = [3600.0, 3610.0, 20.0, 30.0]
    lines = [{"time_s": time_s, "policy_id": 0, "frames": 10 * n, "a": 1.0} for n, time_s in enumerate(times)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / MARKER).write_text("")
    (run,) = read_run(tmp_path)
    assert run.wall_time_s == 20.0


def test_points_of_one_moment_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Clocks(monkeypatch)
    log = ScalarLog(tmp_path, print)
    for policy_id in range(3):
        log.write(policy_id, 1, {"a": 1.0})
    log.close()
    points = Points(tmp_path, "wandb")
    first, *_ = points.new()
    points.note(first)
    assert [point["policy_id"] for point in Points(tmp_path, "wandb").new()] == [1, 2]
