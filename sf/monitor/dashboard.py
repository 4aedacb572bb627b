"""``--dashboard=True``: reward, rates, lag, time shares, faults and the verdict, drawn below the lines of a run.

After each drawing the cursor goes back to the first line of the dashboard. So a line of another process takes its
place, and the next drawing begins below that line. Nothing is lost and no process needs to know of the dashboard.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections import deque
from collections.abc import Mapping
from typing import IO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sf.config import RunConfig
from sf.console import rounded
from sf.machine.cores import usable_cores
from sf.monitor.curve_text import curve_text
from sf.monitor.time_shares import TURNS, WAIT, Seconds, bottleneck, shares_text
from sf.monitor.view import View

CURVE_LINES = 8
LEFT_WIDTH_SHARE = 0.62
LEAST_COLUMNS_FOR_TWO = 90
"""Else the numbers stand below the curve."""
MOST_COLUMNS = 120
BAR = 24
"""Characters of a bar of time shares."""
MOST_POINTS = 2 * MOST_COLUMNS
"""Of the curve; then every other one is left out."""
RECENT_S = 10.0
"""Time shares cover the last so many seconds."""
CLEAR_BELOW = "\r\x1b[J"
COLOURS = "green", "cyan", "yellow", "magenta", "blue", "red"
"""Of the activities that take most time, in this order."""


class Dashboard:
    """Drawn by the main process, without a thread."""

    def __init__(self, run: RunConfig, stream: IO[str] | None = None) -> None:
        """Draws nothing yet.

        Args:
            run: names and limits.
            stream: a terminal, by default standard output.
        """
        self._run, self._stream = run, stream or sys.stdout
        self._console = Console(file=self._stream, force_terminal=True, highlight=False)
        self._rewards: list[tuple[float, float]] = []
        self._looks: deque[tuple[float, Seconds, float]] = deque()
        """Time, and what the processes had taken and asked for by then, for the last seconds."""
        self._text = ""
        """As it was drawn last."""

    def update(self, view: View) -> None:
        """Draws again; the curve gets a point."""
        if view.rewards:
            self._rewards.append((view.frames, next(iter(view.rewards.values()))))
        if len(self._rewards) > MOST_POINTS:
            del self._rewards[-2::-2]
        size = shutil.get_terminal_size()
        self._console.width = min(MOST_COLUMNS, size.columns)
        with self._console.capture() as captured:
            self._console.print(self._drawing(view))
        lines = captured.get().splitlines()[: max(1, size.lines - 1)]
        self._text = "\n".join(lines)
        self._write(self._text)

    def print_above(self, text: str) -> None:
        """Prints lines in the place of the dashboard, which follows them."""
        self._stream.write(CLEAR_BELOW + text)
        self._write(self._text)

    def close(self) -> None:
        """Removes it."""
        self._stream.write(CLEAR_BELOW)
        self._stream.flush()

    def _write(self, text: str) -> None:
        num_down = text.count("\n")
        back = f"\x1b[{num_down}A\r" if num_down else "\r"
        self._stream.write(CLEAR_BELOW + text + back)
        self._stream.flush()

    def _drawing(self, view: View) -> RenderableType:
        is_wide = self._console.width >= LEAST_COLUMNS_FOR_TWO
        left = int(LEFT_WIDTH_SHARE * self._console.width) if is_wide else self._console.width
        curve = "\n".join(curve_text(self._rewards, left - 4, CURVE_LINES))
        means = ", ".join(rounded(reward, 1) for reward in view.rewards.values()) or "none yet"
        means += f" (curve: policy {next(iter(view.rewards))})" if len(view.rewards) > 1 else ""
        rewards = Text(curve, style="green", no_wrap=True)
        panels = (
            Panel(rewards, title=f"reward {means}", box=box.ROUNDED, title_align="left"),
            Panel(_numbers(view), title="now", box=box.ROUNDED, title_align="left", height=CURVE_LINES + 2),
        )
        middle: RenderableType = Group(*panels)
        if is_wide:
            middle = table = Table.grid()
            table.add_column(width=left)
            table.add_column(width=self._console.width - left)
            table.add_row(*panels)
        recent, asked = self._recent(view)
        verdict = TURNS if self._run.serial_mode else bottleneck(recent, asked, usable_cores())
        return Group(self._title(view), middle, *_share_bars(recent, self._console.width), Text(verdict, style="bold"))

    def _title(self, view: View) -> Text:
        run = self._run
        parts = [f"{run.env}", run.experiment, _clock(view.elapsed_s), f"{view.frames:,} frames"]
        done = max(view.frames / run.frame_limit, view.elapsed_s / run.time_limit_s)
        if 0 < done <= 1:
            left_s = view.elapsed_s * (1 - done) / done
            parts.append(f"{100 * done:.0f} %, about {_clock(left_s)} left")
        return Text.assemble(("sf", "bold"), "  ", "  ·  ".join(parts), no_wrap=True, overflow="ellipsis")

    def _recent(self, view: View) -> tuple[Seconds, float]:
        """The seconds of each process since about `RECENT_S` ago, and the cores that all asked for."""
        seconds, all_asked_s = view.seconds(), view.asked_s()
        self._looks.append((view.elapsed_s, {name: dict(one) for name, one in seconds.items()}, all_asked_s))
        while len(self._looks) > 2 and self._looks[1][0] <= view.elapsed_s - RECENT_S:
            self._looks.popleft()
        then_s, before, asked_s = self._looks[0]
        if len(self._looks) == 1:
            return seconds, 0.0
        asked = max(0.0, all_asked_s - asked_s) / max(view.elapsed_s - then_s, 1e-9)  # fewer where a process has ended
        return {
            # A successor begins at zero, so what it took since then may be less than what its predecessor took.
            name: {what: max(0.0, s - before.get(name, {}).get(what, 0.0)) for what, s in activities.items()}
            for name, activities in seconds.items()
        }, asked


def _numbers(view: View) -> Table:
    """Rates, lag and faults."""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    short, long, _ = view.fps
    table.add_row("FPS", f"{_rate(short)} (60 s: {_rate(long)})")
    table.add_row("samples/s", ", ".join(_rate(rate) for rate in view.throughput))
    lag, faults = view.lag, view.faults()
    table.add_row("policy lag", f"{lag.avg:.1f} (min {lag.min:.0f}, max {lag.max:.0f})" if lag.avg >= 0 else "none yet")
    for name, tag in (("restarts", "faults/restarts"), ("failed saves", "faults/failed_saves")):
        number = faults.get(tag, 0.0)
        table.add_row(name, Text(f"{number:.0f}", style="bold red" if number else ""))
    discarded = sum(count for tag, count in faults.items() if tag.startswith("faults/discarded_"))
    table.add_row("discarded", f"{discarded:.0f} slots")
    if "faults/checkpoint_age" in faults:
        table.add_row("checkpoint", f"{_clock(faults['faults/checkpoint_age'])} old")
    return table


def _share_bars(seconds: Seconds, width: int) -> list[Text]:
    """A line for each role: a bar, and the shares as text."""
    roles: dict[str, dict[str, float]] = {}
    for name, activities in seconds.items():
        own = roles.setdefault(name.split("-")[0], {})
        for activity, took_s in activities.items():
            own[activity] = own.get(activity, 0.0) + took_s
    longest = max(map(len, roles), default=0)
    lines = []
    for role, activities in roles.items():
        line = Text(f"{role:<{longest}}  ", no_wrap=True, overflow="ellipsis")
        line.append_text(_bar(activities))
        line.append(f"  {shares_text(activities)}")
        line.truncate(width)
        lines.append(line)
    return lines


def _bar(activities: Mapping[str, float]) -> Text:
    """Blocks for what a role does, dots while it waits."""
    total, bar, end = sum(activities.values()), Text(), 0.0
    if not total:
        return Text("·" * BAR, style="dim")
    busy = sorted((name for name in activities if name != WAIT), key=lambda name: -activities[name])
    for number, name in enumerate(busy):
        begin, end = end, end + BAR * activities[name] / total
        bar.append("█" * (round(end) - round(begin)), style=COLOURS[number % len(COLOURS)])
    bar.append("·" * (BAR - round(end)), style="dim")
    return bar


def _rate(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
