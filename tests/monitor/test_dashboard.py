"""The dashboard, read back from an emulated terminal."""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sf.config import RunConfig
from sf.monitor import dashboard as dashboard_module
from sf.monitor import dashboard_parts
from sf.monitor.curve_text import curve_text
from sf.monitor.dashboard import Dashboard
from sf.monitor.screens import LEAST_COLUMNS, LEAST_LINES, why_not_drawn
from sf.monitor.snapshot import Lag
from sf.monitor.time_left import time_left
from sf.monitor.time_shares import TURNS
from sf.monitor.view import View
from tests.monitor.test_progress_bar import ROOT, read_terminal

pyte = pytest.importorskip("pyte")
COLUMNS, LINES = 110, 40
SECONDS = {
    "rollout-0": {"step": 3.0, "act": 1.0, "wait": 1.0},
    "rollout-1": {"step": 5.0, "act": 0.0, "wait": 0.0},
    "learner-0": {"update": 1.0, "wait": 9.0},
}


class Terminal:
    """What a stream shows on a terminal of this size."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int = COLUMNS, lines: int = LINES) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", str(lines))
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        self.screen: Any = pyte.Screen(columns, lines)
        self.stream = io.StringIO()
        self._pyte: Any = pyte.Stream(self.screen)

    def write(self, text: str) -> None:
        """By another process."""
        self.stream.write(text)

    def shown(self) -> list[str]:
        """The lines that are not empty; a terminal begins each line at its left end."""
        self._pyte.feed(self.stream.getvalue().replace("\n", "\r\n"))
        self.stream.seek(0)
        self.stream.truncate()
        return [line.rstrip() for line in self.screen.display if line.strip()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(monkeypatch)


def view(elapsed_s: float = 5.0, frames: int = 250_000, **other: Any) -> View:
    faults = {"faults/restarts": 2.0, "faults/discarded_worker_died": 3.0, "faults/discarded_unused": 1.0}
    made = View(
        elapsed_s, frames, [50_000.0, 49_000.0, math.nan], [51_000.0], {0: 21.5}, Lag(3.0, 5.5, 11.0),
        lambda: faults | {"faults/checkpoint_age": 61.0, "faults/failed_saves": 0.0}, lambda: SECONDS,
    )  # fmt: skip
    return made._replace(**other)


def test_dashboard_shows_the_run(terminal: Terminal) -> None:
    dashboard = Dashboard(RunConfig(env="Toy-v0", experiment="mine", train_for_env_steps=1_000_000), terminal.stream)
    dashboard.update(view())
    title, verdict, *more, rollout, learner = terminal.shown()
    assert title == "sf  Toy-v0  ·  mine  ·  0:00:05  ·  250,000 frames  ·  25 %, about 0:00:15 left"
    assert verdict.startswith("The environments hold the run back: add --num_workers if cores are free.")
    top, *middle, bottom = more
    assert "reward 21.5" in top
    assert "frames 250,000 to 250,000" in bottom
    assert len(middle) == 35 - 6, "the lines of the other parts leave so many of 40, of which 5 are kept for messages"
    assert len({len(line) for line in more}) == 1, "the frames are straight"
    numbers = "\n".join(line.split("││")[1].strip(" │") for line in middle)
    for text in (
        "FPS        50,000 (60 s: 49,000)", "samples/s  51,000", "policy lag 5.5 (min 3, max 11)",
        "checkpoint 0:01:01 old", "restarts   2", "discarded  4 slots",
    ):  # fmt: skip
        assert text in numbers
    assert "failed saves" not in numbers
    # Of ten seconds of two workers eight are steps, one is acting: 19 and 2 characters of 24, rounded at their ends.
    assert rollout == f"rollout  {'█' * 22}··  step  80.0%  act  10.0%  wait  10.0%"
    assert learner == f"learner  {'█' * 2}{'·' * 22}  wait  90.0%  update  10.0%"


def test_each_drawing_takes_the_place_of_the_one_before_and_lines_stay_above(terminal: Terminal) -> None:
    dashboard = Dashboard(RunConfig(env="Toy-v0"), terminal.stream)
    for second in range(3):
        dashboard.update(view(elapsed_s=second))
        dashboard.print_above(f"[2000-01-02] Saved {second} [bold]\n")
    terminal.write("\r\x1b[2KWarning of another process\n")
    dashboard.update(view(elapsed_s=3.0))
    shown = terminal.shown()
    assert shown[:4] == [*(f"[2000-01-02] Saved {second} [bold]" for second in range(3)), "Warning of another process"]
    assert shown[4].startswith("sf  Toy-v0")
    assert "0:00:03" in shown[4]
    assert sum(line.startswith("sf  Toy-v0") for line in shown) == 1
    dashboard.close()
    assert terminal.shown() == shown[:4]


@pytest.mark.parametrize(("columns", "lines"), [(60, 10), (40, 5), (300, 80)])
def test_dashboard_fits_any_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, lines: int) -> None:
    terminal = Terminal(monkeypatch, columns, lines)
    dashboard = Dashboard(RunConfig(env="Toy-v0"), terminal.stream)
    for second in range(5):
        dashboard.update(view(elapsed_s=second))
    shown = terminal.shown()
    assert len(shown) < lines
    assert sum(line.startswith("sf  Toy-v0") for line in shown) == 1


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (60, 20), (LEAST_COLUMNS, LEAST_LINES)])
@pytest.mark.parametrize("breaks", [False, True])
def test_verdict_time_left_and_faults_are_seen_and_the_curve_takes_the_rest(
    columns: int, lines: int, breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_module, "usable_cores", lambda: 2)
    terminal = Terminal(monkeypatch, columns, lines)
    run = RunConfig(env="LunarLander-v3", experiment="a_name_that_is_long", train_for_env_steps=1_000_000)
    dashboard = Dashboard(run, terminal.stream)
    faults = dict.fromkeys(("faults/restarts", "faults/failed_saves", "faults/discarded_unused"), float(breaks))
    for second in range(3):
        seconds = {name: {what: second * s for what, s in one.items()} for name, one in SECONDS.items()}
        dashboard.update(
            view(
                second,
                frames=250_000 * second,
                faults=partial(dict, faults),
                seconds=partial(dict, seconds),
                asked_s=partial(float, 2.5 * second),
            )
        )
    shown = terminal.shown()
    assert len(shown) == lines - 1 - (lines - 24) // 4 * (lines > 24), "all of the room"
    assert "50 %, about 0:00:10 left" in shown[0]
    text = " ".join(shown)
    assert "so the machine is full and more --num_workers will not help" in text
    for name in ("restarts", "failed saves", "discarded"):
        assert (name in text) is breaks
    frame = [line for line in shown if line.startswith("│")]
    assert len(frame) >= 3
    if (columns, breaks) == (80, False):
        assert len(frame) == 24 - 1 - 1 - 3 - 2 - 2 - 2, "title, verdict, frame, numbers, bars"


def test_title_leaves_out_what_matters_least() -> None:
    run = RunConfig(env="Some/Environment-v0", experiment="mine", train_for_env_steps=500_000)
    titles = {width: dashboard_parts.title(run, view(), width).plain for width in (92, 91, 82, 70, 40)}
    end = "50 %, about 0:00:05 left"
    assert titles == {
        92: f"sf  Some/Environment-v0  ·  mine  ·  0:00:05  ·  250,000 frames  ·  {end}",
        91: f"sf  Some/Environment-v0  ·  0:00:05  ·  250,000 frames  ·  {end}",
        82: f"sf  Some/Environment-v0  ·  250,000 frames  ·  {end}",
        70: f"sf  Some/Environment-v0  ·  {end}",
        40: f"sf  Some/E…  ·  {end}",
    }


def test_numbers_are_whole_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch, 60, 50)
    Dashboard(RunConfig(env="Toy-v0"), terminal.stream).update(view(rewards={0: 21.5, 1: 3.0}))
    shown = "\n".join(terminal.shown())
    assert "policy lag 5.5 (min 3, max 11)" in shown
    assert "reward 21.5, 3.0 (curve: policy 0)" in shown


def test_before_the_first_numbers(terminal: Terminal) -> None:
    nothing = view(rewards={}, fps=[math.nan] * 3, throughput=[math.nan], lag=Lag(), faults=dict, seconds=dict)
    Dashboard(RunConfig(env="Toy-v0"), terminal.stream, takes_turns=True).update(nothing)
    shown = "\n".join(terminal.shown())
    for text in ("reward none yet", "no episode has ended yet", "FPS        - (60 s: -)", "policy lag none yet"):
        assert text in shown
    assert TURNS[:60] in shown


def test_time_shares_are_those_of_the_last_seconds(terminal: Terminal) -> None:
    dashboard = Dashboard(RunConfig(env="Toy-v0"), terminal.stream)
    for second in range(31):
        stepping = min(second, 15)
        dashboard.update(
            view(second, seconds=partial(dict, {"rollout-0": {"step": stepping, "wait": second - stepping}}))
        )
    assert any(line.startswith(f"rollout  {'·' * 24}  wait 100.0%  step   0.0%") for line in terminal.shown())


def test_the_verdict_knows_that_no_core_is_free(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that step, and wait for each other's core, on two cores."""
    monkeypatch.setattr(dashboard_module, "usable_cores", lambda: 2)
    dashboard = Dashboard(RunConfig(env="Toy-v0"), terminal.stream)
    for second in range(3):
        dashboard.update(
            view(
                second,
                seconds=partial(dict, {"rollout-0": {"step": second}}),
                asked_s=partial(float, 100 + 2.5 * second),
            )
        )
    shown = " ".join(terminal.shown())
    assert "the run asks for 2.5 of 2 cores, so the machine is full" in shown
    assert "a core more would give up to 50 %." in shown


def test_the_curve_of_a_long_run_keeps_its_ends(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 50
    monkeypatch.setattr(dashboard_module, "MOST_POINTS", most)
    dashboard = Dashboard(RunConfig(env="Toy-v0"), terminal.stream)
    for second in range(3 * most):
        dashboard.update(view(second, frames=second, rewards={0: float(second)}))
    points = dashboard._rewards
    assert most / 2 <= len(points) <= most
    assert (points[0], points[-1]) == ((0, 0.0), (3 * most - 1, 3.0 * most - 1))
    assert points == sorted(points)


def test_curve_goes_through_its_points() -> None:
    """Row and column of each dot, from the bits of its character."""
    width, height = 16, 3
    points = [(0.0, 0.0), (10.0, 11.0), (20.0, 0.0)]
    lines = curve_text(points, width, height)
    assert [line[:3] for line in lines] == ["11 ", "   ", " 0 "]
    assert {len(line) for line in lines} == {width}
    dots = set()
    for row, line in enumerate(lines):
        for column, character in enumerate(line[3:]):
            bits = ord(character) - 0x2800
            for bit, (across, down) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]):
                if bits >> bit & 1:
                    dots.add((2 * column + across, 4 * row + down))
    columns = 2 * (width - 3)
    for column in range(columns):
        place = 20.0 * column / (columns - 1)
        wanted = round(11 - (11 - abs(11 - 1.1 * place)))
        assert any((column, dot) in dots for dot in (wanted - 1, wanted, wanted + 1)), column
    assert {column for column, _ in dots} == set(range(columns))


def test_a_curve_in_one_column_is_no_wider() -> None:
    assert curve_text([(0.0, 0.0), (1.0, 1.0)], width=3, height=2) == ["1 ⢸", "0 ⣸"]


def test_a_curve_without_height_lies_in_the_middle() -> None:
    assert [bool(set(line[2:]) - {"⠀"}) for line in curve_text([(0.0, 5.0), (1.0, 5.0)], 12, 3)] == [False, True, False]


DASHBOARD_OF_A_RUN = """
import itertools, sys, pathlib
from sf.monitor import Monitor, PolicySnapshot, Snapshot
from sf.shared.ledger import Ledger
from tests.helpers.monitored import SECONDS, config
monitor = Monitor(config(dashboard=True), pathlib.Path(sys.argv[1]), num_agents=1)
draws = itertools.count(1)
monitor.watch(dict, dict, lambda: {"learner-0": {"update": draw, "wait": draw} for draw in (next(draws),)})
for second in range(12):
    monitor.poll(Snapshot(float(second), (PolicySnapshot(frames=100 * second, refreshes=10 * second),)))
monitor.finish("done", 0, SECONDS, Ledger(1, 1, {}, 0, 0))
"""


def test_monitor_draws_the_dashboard_in_place_of_its_reports_and_takes_it_away(tmp_path: Path) -> None:
    master, slave = os.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
    command = [sys.executable, "-c", DASHBOARD_OF_A_RUN, str(tmp_path)]
    process = subprocess.Popen(command, stdout=slave, env=environment, cwd=ROOT)
    os.close(slave)
    raw = read_terminal(master)
    assert process.wait() == 0
    screen: Any = pyte.Screen(160, 50)
    pyte.Stream(screen).feed(raw)
    shown = "\n".join(screen.display)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", raw)
    assert plain.count("learner  ████████████············") >= 12, "more often where a line came between"
    assert "████" not in shown
    assert raw.count("Fps is") == 1, "at the end, when the dashboard is gone"
    assert "Updated weights" not in raw
    assert "The run has ended: done." in shown


def test_a_terminal_that_knows_no_commands_gets_none(tmp_path: Path) -> None:
    master, slave = os.openpty()
    command = [sys.executable, "-c", DASHBOARD_OF_A_RUN, str(tmp_path)]
    process = subprocess.Popen(command, stdout=slave, env=os.environ | {"TERM": "dumb"}, cwd=ROOT)
    os.close(slave)
    raw = read_terminal(master)
    assert process.wait() == 0
    assert "████" not in raw
    assert "\x1b" not in raw
    assert raw.count("Fps is") == 3
    assert raw.count("There are lines instead of a dashboard, because the terminal cannot move its cursor") == 1


def test_a_terminal_that_is_too_small_has_lines(tmp_path: Path) -> None:
    master, slave = os.openpty()
    command = [sys.executable, "-c", DASHBOARD_OF_A_RUN, str(tmp_path)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "40", "LINES": "10"}
    process = subprocess.Popen(command, stdout=slave, env=environment, cwd=ROOT)
    os.close(slave)
    raw = read_terminal(master)
    assert process.wait() == 0
    assert "\x1b[J" not in raw
    assert raw.count("Fps is") == 3
    assert "because the terminal has 40 x 10 characters, fewer than 50 x 16." in raw


def test_without_a_terminal_there_are_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DASHBOARD_OF_A_RUN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "\x1b" not in done.stdout
    assert done.stdout.count("Fps is") == 3
    assert "There are lines instead of a dashboard, because standard output is no terminal." in done.stdout


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"columns": LEAST_COLUMNS - 1}, "the terminal has 49 x 24 characters"),
        ({"lines": LEAST_LINES - 1}, "the terminal has 80 x 15 characters"),
        ({"is_terminal": False}, "no terminal"),
        ({"term": "dumb"}, "TERM=dumb"),
        ({"encoding": "latin-1"}, "the encoding latin-1 of standard output"),
        ({"encoding": "no such one"}, "the encoding no such one of standard output"),
    ],
)
def test_a_dashboard_that_cannot_be_drawn_has_a_reason(changes: dict[str, Any], why: str) -> None:
    usual: dict[str, Any] = {"columns": 80, "lines": 24, "is_terminal": True, "term": "xterm", "encoding": "utf-8"}
    found = why_not_drawn(**usual | changes)
    assert (why in found) if why else not found


@pytest.mark.parametrize(
    ("limits", "frames", "fps", "told"),
    [
        ({}, 1000, [10.0] * 3, "no limit"),
        ({"stop_at_reward": 475.0}, 1000, [10.0] * 3, "until a return of 475"),
        ({"train_for_env_steps": 4000}, 1000, [math.nan] * 3, "25 %"),
        ({"train_for_env_steps": 4000}, 1000, [10.0, math.nan, math.nan], "25 %, about 0:05:00 left"),
        ({"train_for_env_steps": 4000}, 1000, [10.0, 30.0, 1.0], "25 %, about 0:01:40 left"),
        ({"train_for_seconds": 200}, 1000, [math.nan] * 3, "50 %, about 0:01:40 left"),
        ({"train_for_env_steps": 4000, "train_for_seconds": 200}, 1000, [10.0] * 3, "50 %, about 0:01:40 left"),
        ({"train_for_env_steps": 4000, "train_for_seconds": 200}, 3900, [10.0] * 3, "98 %, about 0:00:10 left"),
        ({"train_for_env_steps": 4000}, 4100, [10.0] * 3, "100 %, about 0:00:00 left"),
    ],
)
def test_time_left_follows_from_the_rate_of_a_minute_and_the_limit_that_comes_first(
    limits: dict[str, Any], frames: int, fps: list[float], told: str
) -> None:
    """A resumed run has frames from before, which took no time of this start."""
    assert time_left(RunConfig(env="Toy-v0", **limits), frames, 100.0, fps) == told


def test_a_role_without_a_time_is_a_line_of_faint_dots() -> None:
    bar = dashboard_parts.bar({})
    assert set(bar.plain) == {"·"}
    assert bar.style == "dim"
