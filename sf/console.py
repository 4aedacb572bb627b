"""Lines on standard output, in one write each so that those of other processes do not cut in."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from sf.console_log import ConsoleLog
from sf.output import discard_output, unbounded

ERASE_LINE = "\r\x1b[2K"
_rank = 0
"""Rank of this process; all but the first mark their lines."""
_log: ConsoleLog | None = None
"""Log of the run that this process belongs to."""
_before_log: deque[str] = deque(maxlen=200)
"""Texts of a run that has no directory yet."""
_spoke_s = time.monotonic()
"""When this process said something last; before, when it began."""


_is_first: Callable[[str], bool] = bool  # which any text is
"""Asked before something is printed that all processes of a run may have noticed."""


class Console:
    """Prints lines with time and process id. Lost output never stops a run."""

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        self._now = now
        self._print: Callable[[str], None] = _write

    def line(self, message: str) -> None:
        """Prints one message."""
        self.plain(f"{prefix(self._now(), os.getpid())}{message}")

    def line_once(self, message: str) -> None:
        """Prints a message about what all processes of a run have in common, unless one of them has printed it."""
        if _is_first(message):
            self.line(message)

    def plain(self, text: str) -> None:
        """Prints text as it is, for tables."""
        global _spoke_s
        record(f"{text}\n")
        _spoke_s = time.monotonic()
        with output_may_be_lost():
            self._print(f"{text}\n")

    def print_with(self, printer: Callable[[str], None] | None) -> None:
        """Hands all further text to `printer`, which keeps a bar below it; None goes back to plain output."""
        self._print = printer or _write


def share_what_is_told(is_first: Callable[[str], bool]) -> None:
    """Has a function say whether a message of this process is the first of its run, see `Console.line_once`."""
    global _is_first
    _is_first = is_first


def spoke_s() -> float:
    """When a console of this process printed last, or when the process began; monotonic."""
    return _spoke_s


@contextmanager
def output_may_be_lost() -> Iterator[None]:
    """Around everything that writes to standard output: when its reader has gone, the rest goes nowhere."""
    try:
        yield
    except ValueError:
        pass  # an environment has closed it
    except OSError:
        discard_output()


def _write(text: str) -> None:
    # The line takes the place of the main process's bar, which is drawn again below it. A dumb terminal has no bar.
    stream = unbounded(sys.stdout)
    may_have_bar = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    stream.write(ERASE_LINE + text if may_have_bar else text)
    stream.flush()


def prefix(now: datetime, pid: int) -> str:
    """The beginning of every line: local time with milliseconds, the process id, and the rank if it is not 0."""
    mark = f"[rank {_rank}] " if _rank else ""
    return f"[{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}][{pid:05d}] {mark}"


def speak_for(rank: int) -> None:
    """Marks all lines of this process, and of the children that it starts from now on."""
    global _rank
    _rank = rank


def spoken_for() -> int:
    """The rank that the lines of this process are marked with."""
    return _rank


def record(text: str) -> None:
    """Puts text into the console log of the run alone, now or when there is one."""
    if _log is None:
        _before_log.append(text)
    else:
        _log.append(text)


def forget_unlogged() -> None:
    """A run begins: the lines before are not its own."""
    _before_log.clear()


def log_to(path: Path | None, may_shorten: bool = False) -> None:
    """Has the lines of this process, and of the children that it starts from now on, written to a file as well.

    Args:
        path: None for no file.
        may_shorten: see `ConsoleLog`.
    """
    global _log
    _log = None if path is None else ConsoleLog(path, may_shorten)


def logged_to() -> Path | None:
    """The file that lines of this process are written to."""
    return None if _log is None else _log.path


@contextmanager
def logged(path: Path, command: str) -> Iterator[None]:
    """Around a run: a console log, which goes on where there is one; with its error at the end, if it has one.

    Args:
        path: of the file.
        command: that has started the run.
    """
    before = "".join(_before_log)
    forget_unlogged()
    log_to(path, may_shorten=True)
    record(f"$ {command}\n{before}")
    try:
        yield
    except BaseException as error:
        record(f"{type(error).__name__}: {error}\n")
        raise
    finally:
        log_to(None)


def rounded(number: float, decimals: int = 3) -> str:
    """With so many decimals, or with three digits where these would hardly show anything."""
    is_tiny = 0 < abs(number) < 10**-decimals
    return f"{number:.3g}" if is_tiny else f"{number:.{decimals}f}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
