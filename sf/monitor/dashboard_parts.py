"""The parts of the dashboard, each for the width that there is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from sf.config import RunConfig
from sf.console import clock
from sf.monitor.time_left import time_left
from sf.monitor.time_shares import WAIT, Seconds, shares_text
from sf.monitor.view import View

BAR, SHORT_BAR = 24, 10
"""Characters of a bar of time shares; the short one stands where lines are."""
SHORT_BELOW_COLUMNS = 80
COLOURS = "green", "cyan", "yellow", "magenta", "blue", "red"
"""Colours of the activities that take most time, in this order."""
BETWEEN = "  ·  "
Number = tuple[str, str]
"""A name and its value."""


def title(run: RunConfig, view: View, width: int) -> Text:
    """The run and its end on one line. In a narrow terminal the experiment and the time so far are left out."""
    end = time_left(run, view.frames, view.elapsed_s, view.fps)
    frames = f"{view.frames:,} frames"
    choices = (
        [run.env, run.experiment, clock(view.elapsed_s), frames, end],
        [run.env, clock(view.elapsed_s), frames, end],
        [run.env, frames, end],
        [run.env, end],
    )
    parts = next((parts for parts in choices if 4 + len(BETWEEN.join(parts)) <= width), choices[-1])
    room = max(2, width - 4 - len(BETWEEN.join(["", *parts[1:]])))
    name = parts[0] if len(parts[0]) <= room else f"{parts[0][: room - 1]}…"
    line = Text.assemble(("sf", "bold"), "  ", BETWEEN.join([name, *parts[1:]]), no_wrap=True, overflow="ellipsis")
    line.truncate(width)
    return line


def numbers(view: View) -> list[Number]:
    """Rates, lag, and the age of the checkpoint."""
    short, long, _ = view.fps
    lag, age_s = view.lag, view.faults().get("faults/checkpoint_age")
    return [
        ("FPS", f"{_rate(short)} (60 s: {_rate(long)})"),
        ("samples/s", ", ".join(_rate(rate) for rate in view.throughput)),
        ("policy lag", f"{lag.avg:.1f} (min {lag.min:.0f}, max {lag.max:.0f})" if lag.avg >= 0 else "none yet"),
        *([] if age_s is None else [("checkpoint", f"{clock(age_s)} old")]),
    ]


def faults(view: View) -> list[Number]:
    """What broke; nothing if nothing did."""
    counted = view.faults()
    discarded = sum(count for tag, count in counted.items() if tag.startswith("faults/discarded_"))
    found = {
        "restarts": f"{counted.get('faults/restarts', 0.0):.0f}",
        "failed saves": f"{counted.get('faults/failed_saves', 0.0):.0f}",
        "discarded": f"{discarded:.0f} slots",
    }
    return [(name, number) for name, number in found.items() if not number.startswith("0")]


def as_table(shown: Sequence[Number], broken: Sequence[Number]) -> Table:
    """A row for each number, what broke in red."""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    for name, value in shown:
        table.add_row(name, value)
    for name, value in broken:
        table.add_row(name, Text(value, style="bold red"))
    return table


def as_lines(shown: Sequence[Number], style: str, width: int) -> list[Text]:
    """The same side by side, with as many numbers in a line as fit."""
    lines: list[Text] = []
    for name, value in shown:
        part = Text.assemble((f"{name} ", "dim"), (value, style))
        if lines and len(lines[-1]) + len(BETWEEN) + len(part) <= width:
            lines[-1].append(BETWEEN, style="dim").append_text(part)
        else:
            lines.append(part)
    return lines


def share_bars(seconds: Seconds, width: int) -> list[Text]:
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
        line.append_text(bar(activities, SHORT_BAR if width < SHORT_BELOW_COLUMNS else BAR))
        line.append(f"  {shares_text(activities)}")
        line.truncate(width)
        lines.append(line)
    return lines


def bar(activities: Mapping[str, float], length: int = BAR) -> Text:
    """Blocks for what a role does, dots while it waits."""
    total, drawn, end = sum(activities.values()), Text(), 0.0
    if not total:
        return Text("·" * length, style="dim")
    busy = sorted((name for name in activities if name != WAIT), key=lambda name: -activities[name])
    for number, name in enumerate(busy):
        begin, end = end, end + length * activities[name] / total
        drawn.append("█" * (round(end) - round(begin)), style=COLOURS[number % len(COLOURS)])
    drawn.append("·" * (length - round(end)), style="dim")
    return drawn


def _rate(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"
