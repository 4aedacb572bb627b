"""What functions of a plan find in the worker that they run in, and what is told of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from sf.plans.local_iterator import NOT_READY, NotReady, Transform
from sf.plans.mailbox import Answer
from sf.plans.policy_map import PolicyMap
from sf.plans.program import Program


class WorkerSide(PolicyMap):
    """What functions of a plan see of the worker that they run in."""

    def __init__(self, program: Program, index: int) -> None:
        """Of worker `index`, counted from 0; it has no weights yet."""
        policies = {name: spec.build() for name, spec in program.policies.items()}
        super().__init__(policies, program.policies_to_train)
        self.worker_index = index


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


class FragmentTransforms:
    """What a worker does with each of its fragments before the driver sees it."""

    def __init__(self, transforms: Sequence[Transform] = ()) -> None:
        """Of an iterator over batches to an iterator over items, one after the other."""
        self.are_some, self._batches = bool(transforms), list[Any]()
        self._items: Iterator[Any] = self._source()
        for transform in transforms:
            self._items = transform(self._items)

    def _source(self) -> Iterator[Any]:
        while True:
            yield self._batches.pop() if self._batches else NOT_READY

    def __call__(self, batch: Any) -> list[Any]:
        self._batches.append(batch)
        items = []
        while not isinstance(item := next(self._items), NotReady):
            items.append(item)
        return items


def answer_of(function: Callable[[Any], Any], worker: PolicyMap, index: int, number: int) -> Answer:
    """The result of a call, or how it failed; a result that cannot be sent is a failure too."""
    try:
        return Answer(index, number, cloudpickle.dumps(function(worker)))
    except Exception as error:
        return Answer(index, number, b"", f"{type(error).__name__}: {error}")
