"""Lines about work that takes long: the first one within five seconds, later ones at growing distances."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

from sf.console import Console, spoke_s

FIRST_S = 4.0
"""Silence after which a line comes. With `LOOK_S`, and the time a line takes, that is less than five seconds."""
LOOK_S = 0.5
"""How often work is looked at."""
GROWTH = 2.0
"""Each distance is so many times the one before."""
LONGEST_S = 60.0
"""Distance that grows no further."""


class Pace:
    """Decides when a line is due. It has no clock: each call brings the time."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self._gap_s, self._said_s = FIRST_S, -math.inf

    def is_due(self, now_s: float, spoke_s: float) -> bool:
        """Whether a line is due, which then counts as said.

        Args:
            now_s: monotonic.
            spoke_s: when anything else was said last, or when the silence began.
        """
        if now_s < max(self._said_s, spoke_s) + self._gap_s:
            return False
        self._said_s, self._gap_s = now_s, min(GROWTH * self._gap_s, LONGEST_S)
        return True


@contextlib.contextmanager
def told_while(sentence: Callable[[float], str], tell: Callable[[str], object]) -> Iterator[None]:
    """Around work in this process that may take long and cannot look at a clock itself.

    A thread tells, so work that keeps the interpreter lock of Python for long keeps the lines back.

    Args:
        sentence: is given the seconds of the work so far.
        tell: receives the sentences.
    """
    is_over, began_s = threading.Event(), time.monotonic()

    def look() -> None:
        pace = Pace()
        while not is_over.wait(LOOK_S):
            now_s = time.monotonic()
            if pace.is_due(now_s, spoke_s()):
                tell(sentence(now_s - began_s))

    thread = threading.Thread(target=look, name="telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def told_if_slow(what: str) -> contextlib.AbstractContextManager[None]:
    """The same on the console, with the name of the work."""
    return told_while(lambda seconds: f"Waiting for {what}, {seconds:.0f} s so far.", Console().line)
