"""A bound on what the environments of a process may print, so that a flood fills no disk and hides no report."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

CHARACTERS_PER_SECOND = 2**16


class BoundedStream:
    """Passes on what is written to a stream, up to so many characters in each second, and says how many it left out.

    It sees what Python prints. Compiled code and other processes write past it.
    """

    def __init__(self, stream: TextIO, limit: int = CHARACTERS_PER_SECOND) -> None:
        self._stream, self._limit = stream, limit
        self._second, self._written, self._left_out = 0, 0, 0

    def write(self, text: str) -> int:
        """Writes all of it, or nothing of it and of what follows in this second but a word about it in a later one."""
        second = int(time.monotonic())
        if second != self._second:
            if self._left_out:
                self._stream.write(f"\n[{self._left_out:,} characters that an environment printed are left out]\n")
            self._second, self._written, self._left_out = second, 0, 0
        if not self._left_out and self._written + len(text) <= self._limit:
            self._written += len(text)
            self._stream.write(text)
        else:
            self._left_out += len(text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Everything else is that of the stream."""
        return getattr(self._stream, name)


def bound_output() -> None:
    """Bounds both streams of this process."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is not None:
            setattr(sys, name, BoundedStream(stream))
