"""What is drawn below the lines of a run: the dashboard, a bar, or nothing where it cannot be drawn."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable

from sf.config import Config
from sf.monitor.view import Screen

LEAST_COLUMNS, LEAST_LINES = 50, 16
"""Least size of a terminal in which the dashboard has room for a curve."""
DRAWN_WITH = "⣿█╭·…"
"""Characters that the encoding of the output must have."""


def why_not_drawn(columns: int, lines: int, is_terminal: bool, term: str, encoding: str) -> str:
    """The reason why a dashboard cannot be drawn, as the end of a sentence; "" if it can.

    Args:
        columns, lines: of the terminal.
        is_terminal: whether the output is one.
        term: its kind, as in the variable TERM.
        encoding: of the output.
    """
    if not is_terminal:
        return "standard output is no terminal"
    if term == "dumb":
        return "the terminal cannot move its cursor (TERM=dumb)"
    if columns < LEAST_COLUMNS or lines < LEAST_LINES:
        return f"the terminal has {columns} x {lines} characters, fewer than {LEAST_COLUMNS} x {LEAST_LINES}"
    try:
        DRAWN_WITH.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return f"the encoding {encoding} of standard output lacks its characters (PYTHONIOENCODING=utf-8 has them)"
    return ""


def screen_for(config: Config, tell: Callable[[str], object], replays: bool = False) -> Screen | None:
    """A screen if it can be drawn. It takes rich, which is needed on a terminal only.

    Args:
        config: of the run.
        tell: receives one sentence where the dashboard is wanted and cannot be drawn.
        replays: whether the algorithm learns off-policy from a buffer.
    """
    run = config.run
    is_terminal, term = sys.stdout.isatty(), os.environ.get("TERM", "dumb")
    if run.dashboard:
        size = shutil.get_terminal_size()
        why = why_not_drawn(
            size.columns, size.lines, is_terminal, term, getattr(sys.stdout, "encoding", None) or "ascii"
        )
        if why:
            tell(f"There are lines instead of a dashboard, because {why}.")
            return None
        from sf.monitor.dashboard import Dashboard

        return Dashboard(run, replays=replays, takes_turns=config.takes_turns)
    if not is_terminal or term == "dumb":
        return None
    from sf.monitor.progress import ProgressBar

    return ProgressBar(run)
