"""What functions of a plan find in the worker that they run in, and what becomes of its fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sf.plans.fragments import LocalFragments
from sf.plans.local_iterator import NOT_READY, NotReady, Transform
from sf.plans.program import Program
from sf.plans.wiring import wire_alone
from sf.plans.worker import SAMPLING, PlanWorker


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


def applied(transforms: Sequence[Transform]) -> Callable[[Any], list[Any]]:
    """From a batch to the items that transforms of an iterator to an iterator, one after the other, make of it."""
    batches: list[Any] = []

    def source() -> Iterator[Any]:
        while True:
            yield batches.pop() if batches else NOT_READY

    items: Iterator[Any] = source()
    for transform in transforms:
        items = transform(items)

    def apply(batch: Any) -> list[Any]:
        batches.append(batch)
        made = []
        while not isinstance(item := next(items), NotReady):
            made.append(item)
        return made

    return apply
