"""The latencies of a run as percentiles.

Publication → first use: from the begin of a publication of weights to the first forward pass with them or with newer
ones. Every inference worker counts for itself. Request → action: from the request of a group to the moment when its
actions are written and its rollout worker has been woken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sf.run.wiring import Shared
from sf.shared.arena import Array
from sf.shared.role import RoleSpec
from sf.tools.bench.timings import KINDS, Durations, Kind, make_timings

INSTRUMENTED = {
    "sf.learner.worker:Learner": "sf.tools.bench.timed_learner:TimedLearner",
    "sf.inference.worker:InferenceWorker": "sf.tools.bench.timed_inference:TimedInference",
    "sf.inference.small_worker:SmallInference": "sf.tools.bench.timed_small_inference:TimedSmallInference",
    "sf.rollout.worker:RolloutWorker": "sf.tools.bench.timings:TimedRollout",
}
TITLES: dict[Kind, str] = {"publication": "publication → first use", "request": "request → action"}


class Percentiles(NamedTuple):
    """Percentiles of some durations, in milliseconds."""

    p50: float
    p90: float
    p99: float
    max: float
    events: int

    @staticmethod
    def of(durations_ns: Array) -> Percentiles:
        if len(durations_ns) == 0:
            return Percentiles(math.nan, math.nan, math.nan, math.nan, 0)
        p50, p90, p99, p100 = np.percentile(durations_ns / 1e6, (50, 90, 99, 100)).tolist()
        return Percentiles(p50, p90, p99, p100, len(durations_ns))


class StepStopwatch:
    """Times a run that it is attached to."""

    def attach(self, shared: Shared, specs: list[RoleSpec]) -> list[RoleSpec]:
        """The roles with clocks in them."""
        timings = make_timings(shared.topology)
        self.durations = {kind: Durations(timings, kind) for kind in KINDS}
        return [spec.with_factories(INSTRUMENTED, timings=timings) for spec in specs]

    def read(self) -> dict[Kind, Array]:
        """How many durations there have been so far."""
        return {kind: durations.counts() for kind, durations in self.durations.items()}

    def percentiles(self, since: Mapping[Kind, Array]) -> dict[Kind, Percentiles]:
        """Percentiles of what came after these counts."""
        return {kind: Percentiles.of(durations.since(since[kind])) for kind, durations in self.durations.items()}


def percentile_lines(found: Mapping[Kind, Percentiles]) -> list[str]:
    """The lines for the user."""
    width = max(map(len, TITLES.values()))
    table = ["".join([f"{'milliseconds':<{width}}", *(f"{name:>10}" for name in Percentiles._fields)])]
    for kind, row in found.items():
        *times, events = row
        table.append("".join([f"{TITLES[kind]:<{width}}", *(f"{time:10.3f}" for time in times), f"{events:10,}"]))
    return table
