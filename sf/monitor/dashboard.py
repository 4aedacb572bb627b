"""``--dashboard=True``: verdict, reward, rates, lag, faults and time shares, drawn below the lines of a run.

After each drawing the cursor goes back to the first line of the dashboard. So a line of another process takes its
place, and the next drawing begins below that line. Nothing is lost and no process needs to know of the dashboard.
"""

from __future__ import annotations

import shutil
import sys
from collections import deque
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
from sf.monitor.dashboard_parts import as_lines, as_table, faults, numbers, share_bars, title
from sf.monitor.time_shares import TURNS, Seconds, bottleneck
from sf.monitor.view import View

LEAST_CURVE_LINES = 3
FRAME_LINES = 2
"""Above and below a curve."""
USUAL_LINES = 24
"""Usual height of a terminal. A higher one keeps a part for the lines above the dashboard."""
LEFT_WIDTH_SHARE = 0.62
LEAST_COLUMNS_FOR_TWO = 90
"""Else the numbers stand below the curve."""
MOST_COLUMNS = 120
MOST_POINTS = 2 * MOST_COLUMNS
"""Most points of the curve; then every other one is left out."""
RECENT_S = 10.0
"""Time shares cover the last so many seconds."""
CLEAR_BELOW = "\r\x1b[J"


class Dashboard:
    """Drawn by the main process, without a thread."""

    def __init__(
        self, run: RunConfig, stream: IO[str] | None = None, replays: bool = False, takes_turns: bool = False
    ) -> None:
        """Draws nothing yet.

        Args:
            run: names and limits.
            stream: a terminal, by default standard output.
            replays: whether the algorithm learns off-policy from a buffer.
            takes_turns: whether all roles have their turn in one thread.
        """
        self._run, self._stream = run, stream or sys.stdout
        self._replays, self._takes_turns = replays, takes_turns
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
        room = size.lines - 1 - max(0, size.lines - USUAL_LINES) // 4
        with self._console.capture() as captured:
            self._console.print(self._drawing(view, room))
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

    def _drawing(self, view: View, room: int) -> RenderableType:
        """In the order of what matters most, because a terminal that is too small shows the first lines."""
        width = self._console.width
        is_wide = width >= LEAST_COLUMNS_FOR_TWO
        recent, asked = self._recent(view)
        verdict = TURNS if self._takes_turns else bottleneck(recent, asked, usable_cores(), self._replays)
        above = [title(self._run, view, width), *Text(verdict, style="bold").wrap(self._console, width)]
        shown, broken = numbers(view), faults(view)
        below = [] if is_wide else [*as_lines(shown, "", width), *as_lines(broken, "bold red", width)]
        below += share_bars(recent, width)
        least = max(LEAST_CURVE_LINES, len(shown) + len(broken)) if is_wide else LEAST_CURVE_LINES
        height = max(least, room - len(above) - len(below) - FRAME_LINES)
        left = int(LEFT_WIDTH_SHARE * width) if is_wide else width
        middle: RenderableType = self._curve(view, left, height)
        if is_wide:
            beside = Panel(as_table(shown, broken), title="now", box=box.ROUNDED, title_align="left")
            beside.height = height + FRAME_LINES
            table = Table.grid()
            table.add_column(width=left)
            table.add_column(width=width - left)
            table.add_row(middle, beside)
            middle = table
        return Group(*above, middle, *below)

    def _curve(self, view: View, width: int, height: int) -> Panel:
        """The returns of the first policy, with the frames of both ends below."""
        means = ", ".join(rounded(reward, 1) for reward in view.rewards.values()) or "none yet"
        means += f" (curve: policy {next(iter(view.rewards))})" if len(view.rewards) > 1 else ""
        ends = [f"{self._rewards[end][0]:,.0f}" for end in (0, -1)] if self._rewards else []
        curve = "\n".join(curve_text(self._rewards, width - 4, height))
        return Panel(
            Text(curve, style="green", no_wrap=True),
            title=f"reward {means}",
            subtitle=f"frames {' to '.join(ends)}" if ends else None,
            box=box.ROUNDED,
            title_align="left",
            subtitle_align="right",
        )

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
