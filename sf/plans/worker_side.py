"""What functions of a plan find in the worker that they run in, and what is told of their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sf.plans.fragments import LocalFragments
from sf.plans.local_iterator import NOT_READY, NotReady, Transform
from sf.plans.program import Program
from sf.plans.wiring import wire_alone
from sf.plans.worker import PlanWorker

SAMPLING = 0x73616D70
"""The last word of the entropy of environments that functions sample from."""


class WorkerSide(PlanWorker):
    """What functions of a plan see of the worker that they run in: its `sample` has environments of its own."""

    def __init__(self, program: Program, index: int, seed: int) -> None:
        """Has no weights yet.

        Args:
            program: of the worker.
            index: of it, counted from 0.
            seed: of all workers.
        """
        own_seed = int(np.random.SeedSequence([seed, index, SAMPLING]).generate_state(1)[0])
        settings = {**program.settings, "seed": own_seed}
        policies = {name: spec.build() for name, spec in program.policies.items()}

        def fragments() -> LocalFragments:
            return LocalFragments(wire_alone(program, self, settings))

        super().__init__(policies, fragments, settings, program.policies_to_train)
        self.worker_index = index


class FragmentTransforms:
    """What a worker does with each of its fragments before the driver sees it."""

    def __init__(self, transforms: Sequence[Transform] = ()) -> None:
        """Keeps transforms from an iterator over batches to an iterator over items, one after the other."""
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
