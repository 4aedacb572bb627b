"""Lines on standard output, in one write each so that those of other processes do not cut in."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import datetime

from sf.learner.reporter import prefix


class Console:
    """Prints lines with time and process id. Lost output never stops a run."""

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        self._now = now
        self._print: Callable[[str], None] = _write

    def line(self, message: str) -> None:
        """Prints one message."""
        self._print(f"{prefix(self._now(), os.getpid())}{message}\n")

    def plain(self, text: str) -> None:
        """Prints text as it is, for tables."""
        self._print(f"{text}\n")

    def print_with(self, printer: Callable[[str], None] | None) -> None:
        """Hands all further text to `printer`, which keeps a bar below it; None goes back to plain output."""
        self._print = printer or _write


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:  # the terminal or the reader of the pipe has gone
        # Nobody reads any more. Otherwise the flush at the end of Python would fail again and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
