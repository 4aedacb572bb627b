"""Warnings that a process of a run has printed, so that others with the same to say keep silent.

64 workers with one kind of environment notice the same about it. What a process repeats by itself is printed again.
"""

from __future__ import annotations

import hashlib

from sf.shared.arena import Array, Field

TOLD = "run_state/told"
MOST_TOLD = 256


def told_fields() -> dict[str, Field]:
    """Memory of the marks of all warnings; 0 is free."""
    return {TOLD: Field((MOST_TOLD,), "uint64")}


class Told:
    """What has been told, as one process sees it."""

    def __init__(self, marks: Array) -> None:
        """Takes the memory of `told_fields`."""
        self._marks = marks
        self._own: set[int] = set()

    def may_say(self, warning: str) -> bool:
        """Whether no other process has said exactly this; notes that it is said.

        Two processes that say it at the same moment may both, and so may all once there is no room for more.
        """
        mark = int.from_bytes(hashlib.blake2b(warning.encode(errors="replace"), digest_size=8).digest(), "little") or 1
        if mark in self._own:
            return True
        if (self._marks == mark).any():
            return False
        self._own.add(mark)
        free = (self._marks == 0).nonzero()[0]
        if len(free):
            self._marks[free[0]] = mark
        return True
