"""Functions and weights that a driver sends to workers, and what it gets from them.

A message is a pickled object in shared memory under a number. There is no queue and so no lock that could die with
a worker. What a worker makes of a fragment lies in shared memory too, and belongs to the slot of the fragment.

After a call the driver waits for the answer, which comes over the pipe of reports, before it sends the next one. Then
it leaves an empty call. So a successor of a worker that died does what is pending, and nothing twice that was answered.
Any call, an empty one too, tells the worker to take the newest weights before its next fragment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from sf.plans.local_iterator import OperatorFailed
from sf.plans.program import packed
from sf.shared.arena import Array, SharedBlock
from sf.shared.weights import NOTHING_PUBLISHED, PublishedWeights

HEAD_WORDS = 4
"""Words of 32 bits."""
BLOCKS_OF_A_MAILBOX = 3
"""Its number and lengths, and two texts; each is an open file."""
LENGTH_BYTES = 8
"""Bytes before a text, for its length."""
ORDERS = "orders"
"""Name of the field of slots with the number of the orders under which a fragment was begun."""


@dataclass(frozen=True)
class PlanAnswer:
    """From a worker: what it returned when it was called."""

    key: tuple[int, int]
    """The worker, and the number of the call."""
    outcome: bytes
    """See `outcome_of`."""


def outcome_of(function: Callable[..., Any], *arguments: Any) -> bytes:
    """What a function returns, pickled with classes of the script, or the exception that it raises.

    What cannot be sent is a failure too.
    """
    try:
        outcome: bytes = cloudpickle.dumps((None, function(*arguments)))
    except Exception as error:
        kind = "" if isinstance(error, OperatorFailed) else f"{type(error).__name__}: "
        outcome = cloudpickle.dumps((f"{kind}{error}", None))
    return outcome


def result_of(outcome: bytes, where: str) -> Any:
    """What the function has returned.

    Args:
        outcome: of `outcome_of`.
        where: it was called, as the beginning of a sentence.

    Raises:
        OperatorFailed: it raised an exception.
    """
    error, result = cloudpickle.loads(outcome)
    if error is not None:
        raise OperatorFailed(f"{where}{error}")
    return result


@dataclass(frozen=True)
class Published:
    """To all workers: the weights of all policies by name, and what they know of the plan."""

    weights: Mapping[str, Any]
    steps: int
    """Optimizer steps that led to them."""
    timestep: int
    """Steps of environments that were sampled so far."""


class Mailbox:
    """The newest message to one worker, or to all of them. The last two lie in blocks that are as long as they are."""

    def __init__(self) -> None:
        """Holds nothing."""
        self._heads, self._texts = PublishedWeights(), (SharedBlock(), SharedBlock())

    def allocate(self) -> None:
        """Driver: makes room for a number and the length of a text."""
        self._heads.allocate(HEAD_WORDS)

    def send(self, message: Any, name: str = "A function for workers") -> int:
        """Driver: the newest message, or None for none; returns its number. The name is for errors.

        Raises:
            UsageError: it cannot be sent.
            OSError: there is no memory for it.
        """
        text = b"" if message is None else packed(name, message)
        number = self._heads.version + 1
        block = self._texts[number % 2].fd

        def write(vector: Array) -> None:
            os.ftruncate(block, len(text))
            _write(block, text)
            vector.view(np.int64)[:] = number, len(text)

        self._heads.publish(number, write)
        return number

    @property
    def number(self) -> int:
        """Number of the newest message, -1 for none."""
        return self._heads.version

    def read(self) -> tuple[int, Any]:
        """Worker: the number of what was sent last, and what it was."""
        if self.number == NOTHING_PUBLISHED:
            return NOTHING_PUBLISHED, None
        found: list[bytes] = []

        def take(vector: Array) -> None:
            own, length = vector.view(np.int64).tolist()
            found[:] = [_read(self._texts[own % 2].fd, length)]

        number = self._heads.read(take)
        return number, cloudpickle.loads(found[0]) if found[0] else None


class Parcels:
    """What a worker has made of its fragments: a text for each slot, in a block that is as long as the longest one."""

    def __init__(self, slots: range) -> None:
        """Are empty."""
        self._blocks = {slot: SharedBlock() for slot in slots}

    def put(self, slot: int, text: bytes) -> None:
        """Worker, before the slot is full.

        Raises:
            OSError: there is no memory for it.
        """
        block = self._blocks[slot].fd
        _write(block, len(text).to_bytes(LENGTH_BYTES, "little"))
        _write(block, text, LENGTH_BYTES)

    def get(self, slot: int) -> bytes:
        """Driver, while the slot is full."""
        block = self._blocks[slot].fd
        length = int.from_bytes(_read(block, LENGTH_BYTES), "little")
        return _read(block, length, LENGTH_BYTES)


def _write(block: int, text: bytes, start: int = 0) -> None:
    written = 0
    while written < len(text):
        written += os.pwrite(block, memoryview(text)[written:], start + written)


def _read(block: int, length: int, start: int = 0) -> bytes:
    """As many bytes; fewer where the driver writes the next but one text meanwhile, which the caller finds out."""
    parts: list[bytes] = []
    while length > 0 and (part := os.pread(block, length, start)):
        parts.append(part)
        length, start = length - len(part), start + len(part)
    return b"".join(parts)
