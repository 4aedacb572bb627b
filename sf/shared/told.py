"""What a process of a run has said about all of them, so that the others with the same to say keep silent.

64 workers with one kind of environment notice the same about it.
"""

from __future__ import annotations

import hashlib

from sf.shared.arena import Array, Field

TOLD = "run_state/told"
MOST_TOLD = 256


def told_fields() -> dict[str, Field]:
    """Memory of the marks of all messages; 0 is free."""
    return {TOLD: Field((MOST_TOLD,), "uint64")}


class Told:
    """What has been told in a run."""

    def __init__(self, marks: Array) -> None:
        """Takes the memory of `told_fields`."""
        self._marks = marks

    def is_first(self, message: str) -> bool:
        """Returns True for the first message with this text, and notes it.

        Two processes that ask at the same moment may both get True. So may all of them once there is no room for more.
        """
        mark = int.from_bytes(hashlib.blake2b(message.encode(errors="replace"), digest_size=8).digest(), "little") or 1
        if (self._marks == mark).any():
            return False
        free = (self._marks == 0).nonzero()[0]
        if len(free):
            self._marks[free[0]] = mark
        return True
