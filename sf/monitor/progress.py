"""The live bar below the lines, on a terminal only."""

from __future__ import annotations

import math
import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sf.config import RunConfig
from sf.console import rounded
from sf.monitor.view import View


class ProgressBar:
    """Shows how far the run is, the time left, reward, rate and lag. It has no thread; every update draws it."""

    def __init__(self, run: RunConfig, console: Console | None = None) -> None:
        self._frame_limit, self._time_limit_s = run.frame_limit, run.time_limit_s
        self._progress = Progress(
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console or Console(file=sys.stdout, highlight=False),
            auto_refresh=False,
        )
        self._task = self._progress.add_task("starting", total=None)
        self._progress.start()

    def update(self, view: View) -> None:
        """Draws the bar again."""
        parts = [
            f"{view.frames:,} frames",
            *([] if math.isnan(view.fps[0]) else [f"{view.fps[0]:,.0f} FPS"]),
            *(f"reward {rounded(reward, 1)}" for reward in view.rewards.values()),
        ]
        parts += [f"lag {view.lag.avg:.1f}"] if view.lag.avg >= 0 else []
        done = max(view.frames / self._frame_limit, view.elapsed_s / self._time_limit_s)
        has_end = min(self._frame_limit, self._time_limit_s) < math.inf
        total = 1.0 if has_end else None  # nothing to count down to without a limit
        self._progress.update(self._task, description=", ".join(parts), total=total, completed=min(done, 1.0))
        self._progress.refresh()

    def print_above(self, text: str) -> None:
        """Prints text above the bar."""
        self._progress.console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._progress.stop()
