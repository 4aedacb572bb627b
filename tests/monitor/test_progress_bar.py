"""The monitor on a terminal, off one, and on one that goes away."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from sf.config import RunConfig
from sf.monitor import Monitor, PolicySnapshot, Snapshot
from sf.monitor.progress import ProgressBar
from sf.monitor.snapshot import Lag
from sf.monitor.view import View
from sf.shared.ledger import Ledger
from tests.helpers.monitored import SECONDS, config

ROOT = Path(__file__).parents[2]

ON_A_TERMINAL = """
import sys, pathlib
from sf.monitor import Monitor, PolicySnapshot, Snapshot
from sf.shared.ledger import Ledger
from tests.helpers.monitored import SECONDS, config
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


def test_bar_on_a_terminal_shows_reward_rate_and_time_left() -> None:
    screen = io.StringIO()
    console = RichConsole(file=screen, force_terminal=True, width=160, color_system=None)
    bar = ProgressBar(RunConfig(env="Toy-v0", train_for_env_steps=1000), console)
    bar.update(View(5.0, 250, [50.0, 40.0, 30.0], [20.0], {0: 21.5}, Lag(1.0, 3.25, 5.0)))
    bar.print_above("[2000-01-02] [bold]a line[/bold] that is longer than the screen" + "." * 150 + "\n")
    bar.close()
    shown = screen.getvalue()
    assert "25%" in shown
    assert "250 frames, 50 FPS, reward 21.5, lag 3.2" in shown
    assert "[2000-01-02] [bold]a line[/bold] that is longer than the screen" + "." * 150 in shown


def test_bar_of_a_run_without_end_has_no_percentage() -> None:
    screen = io.StringIO()
    bar = ProgressBar(RunConfig(env="Toy-v0"), RichConsole(file=screen, force_terminal=True, width=160))
    bar.update(View(0.0, 0, [math.nan] * 3, [math.nan], {}, Lag()))
    bar.close()
    assert "0 frames" in screen.getvalue()
    assert "nan" not in screen.getvalue()
    assert "lag" not in screen.getvalue()


def test_monitor_on_a_terminal_keeps_the_bar_below_the_lines(tmp_path: Path) -> None:
    process, master = start_on_terminal(tmp_path)
    shown = read_terminal(master)
    assert process.wait() == 0
    assert "Total num frames: 500" in shown
    assert "500 frames, 100 FPS" in shown
    assert "Collected {0: 900}, FPS: 100.0\r\n" in shown
    assert shown.rstrip().endswith("The run has ended: done.")


def test_line_of_another_process_takes_the_place_of_the_bar() -> None:
    master, slave = os.openpty()
    code = "from sf.monitor import Console; Console().plain('Updated weights')"
    subprocess.run([sys.executable, "-c", code], stdout=slave, check=True)
    os.close(slave)
    assert read_terminal(master) == "\r\x1b[2KUpdated weights\r\n"


def test_fault_e5_terminal_that_goes_away_does_not_stop_the_run(tmp_path: Path) -> None:
    process, master = start_on_terminal(tmp_path)
    os.close(master)
    assert process.wait() == 0
    assert json.loads((tmp_path / "summary.json").read_text())["frames"] == 900


def test_plain_lines_off_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(config(), tmp_path, num_agents=1)
    monitor.poll(Snapshot(0.0, (PolicySnapshot(),)))
    monitor.poll(Snapshot(5.0, (PolicySnapshot(new_frames=1),)))
    lines = capsys.readouterr().out.splitlines()
    monitor.finish("stopped", 0, SECONDS, Ledger(0, 0, {}, 0, 0))
    (line,) = lines
    assert "Fps is" in line
    assert "\x1b" not in line
