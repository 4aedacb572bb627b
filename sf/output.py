"""The destination of printed text: bounded, so that a flood fills no disk and hides no report, elsewhere, or none."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

CHARACTERS_PER_SECOND = 2**16


class BoundedStream:
    """Passes on the text for a stream, up to so many characters in each second, and says how many it left out.

    It sees what Python prints. Compiled code and other processes write past it. Text is lost without an error where a
    reader has gone or a disk is full: the environment that printed it is not to blame.
    """

    def __init__(self, stream: TextIO, limit: int = CHARACTERS_PER_SECOND) -> None:
        self._stream, self._limit = stream, limit
        self._second, self._written, self._left_out = 0, 0, 0

    def write(self, text: str) -> int:
        """Writes what there is room for in this second; the rest is told about in a later one."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._written = second, 0
            self.tell_what_is_left_out()
        shown = text[: self._limit - self._written]
        with contextlib.suppress(OSError):
            self._stream.write(shown)
        self._written += len(shown)
        self._left_out += len(text) - len(shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def tell_what_is_left_out(self) -> None:
        """Also called at the end of the process."""
        if self._left_out:
            with contextlib.suppress(OSError):
                self._stream.write(f"\n[{self._left_out:,} characters that an environment printed are left out]\n")
        self._left_out = 0

    def __getattr__(self, name: str) -> Any:
        """Everything else is that of the stream."""
        if name.startswith("_"):  # of an object that is being copied and has no stream yet
            raise AttributeError(name)
        return getattr(self._stream, name)


def open_closed_streams() -> None:
    """Gives a program that was started without standard streams, as by ``>&-``, streams that lead nowhere.

    Files that are opened later would take their numbers, and what is printed would go into them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # a file of the program may have its number
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115  # it stays open


def unbounded(stream: TextIO) -> TextIO:
    """For what the process itself has to say."""
    return stream._stream if isinstance(stream, BoundedStream) else stream


def bound_output() -> None:
    """Bounds both streams of this process."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is not None:
            setattr(sys, name, BoundedStream(stream))


@contextlib.contextmanager
def stdout_goes_to(fd: int) -> Iterator[None]:
    """For this process and those that it starts meanwhile."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(fd, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def discard_output() -> None:
    """From now on standard output goes nowhere, Python's own flush at the end included: its reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
