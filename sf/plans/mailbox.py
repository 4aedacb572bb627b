"""Functions that a driver sends to a worker, and the answers.

A call is a pickled function in shared memory under a number. There is no queue and so no lock that could die with a
worker. The driver waits for the answer, which comes over the pipe of reports, before it sends the next one. Then it
leaves an empty call. So a successor of a worker that died does what is pending, and nothing twice that was answered.
Any call, an empty one too, tells the worker to take the newest weights before its next fragment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from sf.errors import UsageError
from sf.plans.program import packed
from sf.shared.arena import Array
from sf.shared.weights import NOTHING_PUBLISHED, PublishedWeights

MOST_BYTES = 16 << 20
"""Of a call; the kernel gives memory to the part that is used."""
LENGTH_BYTES = 8


@dataclass(frozen=True)
class Answer:
    """From a worker: the pickled result of a call, or the text of the exception that it raised."""

    worker: int
    number: int
    result: bytes
    error: str | None = None


@dataclass(frozen=True)
class Items:
    """From a worker: what its orders have made of a fragment, told before the slot is full."""

    slot: int
    filling: int
    """How often the slot had been handed out; a successor fills it anew."""
    items: bytes
    """Pickled, with classes of the script."""
    error: str | None = None
    """The exception that a function raised."""


class Mailbox:
    """Calls to one worker."""

    def __init__(self) -> None:
        """Holds nothing."""
        self._block = PublishedWeights()

    def allocate(self) -> None:
        """Driver: makes room."""
        self._block.allocate((MOST_BYTES + LENGTH_BYTES) // 4)

    def send(self, function: Callable[[Any], Any] | None) -> int:
        """Driver: the newest call, or none; returns its number.

        Raises:
            UsageError: it cannot be sent, or is too large.
        """
        text = b"" if function is None else packed("A function", function)
        if len(text) > MOST_BYTES:
            raise UsageError(f"A function for workers takes {len(text)} bytes, {MOST_BYTES} at most.")
        number = self._block.version + 1

        def write(vector: Array) -> None:
            room = vector.view(np.uint8)
            room[:LENGTH_BYTES] = np.array([len(text)], np.int64).view(np.uint8)
            room[LENGTH_BYTES : LENGTH_BYTES + len(text)] = np.frombuffer(text, np.uint8)

        self._block.publish(number, write)
        return number

    @property
    def number(self) -> int:
        """Worker: of the newest call, -1 for none."""
        return self._block.version

    def read(self) -> tuple[int, Callable[[Any], Any] | None]:
        """Worker: the newest call and its number; None for an empty one."""
        if self._block.version == NOTHING_PUBLISHED:
            return NOTHING_PUBLISHED, None
        found: list[bytes] = []

        def take(vector: Array) -> None:
            room = vector.view(np.uint8)
            (length,) = room[:LENGTH_BYTES].view(np.int64)
            found[:] = [room[LENGTH_BYTES : LENGTH_BYTES + length].tobytes()]

        number = self._block.read(take)
        return number, cloudpickle.loads(found[0]) if found[0] else None
