"""How long things take on their way between processes, written down by the processes themselves.

The process that starts something leaves a time stamp in shared memory before it. The process that ends it keeps the
difference. The monotonic clock is the same for all processes of a machine. Every array has one writer per row. No torch
is imported here, because rollout workers do without it.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np

from sf.rollout.worker import RolloutWorker
from sf.shared.arena import Arena, Array, Field
from sf.shared.context import RunContext
from sf.shared.requests import Requests
from sf.shared.topology import Topology

Kind = Literal["publication", "request"]
KINDS: tuple[Kind, ...] = ("publication", "request")

KEPT = 2**17
"""Newest durations of each kind that an inference worker keeps."""
VERSIONS = 2**12
"""Newest versions whose publication is remembered."""


def newest_versions(held: int, taken: int) -> Array:
    """Versions after the one that was held, up to the one that was taken, whose publication is remembered."""
    return np.arange(max(held, taken - VERSIONS) + 1, taken + 1)


def make_timings(topology: Topology) -> Arena:
    """Time stamps and durations of one run, in nanoseconds."""
    workers = topology.num_policies * topology.inference_per_policy
    fields = {
        "published": Field((topology.num_policies, VERSIONS), "int64"),
        "requested": Field((topology.num_groups,), "int64"),
    }
    for kind in KINDS:
        fields[f"{kind}/durations"] = Field((workers, KEPT), "int64")
        fields[f"{kind}/counts"] = Field((workers,), "int64")
    return Arena(fields)


class Durations:
    """The newest durations of one kind, of all inference workers."""

    def __init__(self, timings: Arena, kind: Kind):
        self._kept, self._counts = timings[f"{kind}/durations"], timings[f"{kind}/counts"]

    def add(self, worker: int, durations: Array) -> None:
        """Writer: keeps these, in nanoseconds."""
        first = int(self._counts[worker])
        self._kept[worker, np.arange(first, first + len(durations)) % KEPT] = durations
        self._counts[worker] = first + len(durations)

    def counts(self) -> Array:
        """Reader: [workers] how many there have been so far."""
        return self._counts.copy()

    def since(self, counts: Array) -> Array:
        """Reader: all that came after these counts; only the newest if there were too many."""
        parts = [
            row[np.arange(max(first, last - KEPT), last) % KEPT]
            for row, first, last in zip(self._kept, counts.tolist(), self._counts.tolist(), strict=True)
        ]
        return np.concatenate(parts)


class TimedRollout(RolloutWorker):
    """Leaves a stamp before every request."""

    def __init__(self, timings: Arena, **arguments: Any):
        super().__init__(**arguments)
        requests = StampedRequests(arguments["context"], timings)
        for group in self.groups:
            group.requests = requests


class StampedRequests(Requests):
    """The words of the requests, and when each one was made."""

    def __init__(self, context: RunContext, timings: Arena):
        super().__init__(context.topology, context.arena)
        self.requested = timings["requested"]

    def ask(self, group: int, slot: int, step: int, after: int = 1) -> None:
        self.requested[group] = time.monotonic_ns()
        super().ask(group, slot, step, after)
