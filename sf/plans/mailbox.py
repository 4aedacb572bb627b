"""Functions and weights that a driver sends to workers, and the answers.

A message is a pickled object in shared memory under a number. There is no queue and so no lock that could die with
a worker. After a call the driver waits for the answer, which comes over the pipe of reports, before it sends the next
one. Then it leaves an empty call. So a successor of a worker that died does what is pending, and nothing twice that was
answered. Any call, an empty one too, tells the worker to take the newest weights before its next fragment.
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


@dataclass(frozen=True)
class PlanAnswer:
    """From a worker: what a function has made there."""

    key: Key
    result: bytes
    """Pickled, with classes of the script."""
    error: str | None = None
    """The exception that the function raised."""

    @classmethod
    def of(cls, key: Key, function: Callable[..., Any], *arguments: Any) -> PlanAnswer:
        """Calls a function; a result that cannot be sent is a failure too."""
        try:
            return cls(key, cloudpickle.dumps(function(*arguments)))
        except Exception as error:
            kind = "" if isinstance(error, OperatorFailed) else f"{type(error).__name__}: "
            return cls(key, b"", f"{kind}{error}")


Key = tuple[str, int, int]
"""``call``, worker and number of a call; or ``items``, slot and how often that was handed out."""


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
            written = 0
            while written < len(text):
                written += os.pwrite(block, memoryview(text)[written:], written)
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


def _read(block: int, length: int) -> bytes:
    """As many bytes; fewer where the driver writes the next but one text meanwhile, which the caller finds out."""
    parts: list[bytes] = []
    while length > 0 and (part := os.pread(block, length, sum(map(len, parts)))):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
