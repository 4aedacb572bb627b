"""Numbers that the operators of a plan share (row D19)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from types import TracebackType
from typing import Any

MOST_SAMPLES = 100
"""Newest measurements, of which a timer shows the mean."""


class BlockTimer:
    """Mean duration and throughput of a block: ``with timer: ...``."""

    def __init__(self) -> None:
        """Has measured nothing."""
        self.total = 0.0
        """Seconds of all durations."""
        self._seconds: list[float] = []
        self._units: list[float] = []
        self._began_s = 0.0

    def __enter__(self) -> BlockTimer:
        self._began_s = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.push(time.perf_counter() - self._began_s)

    def push(self, seconds: float) -> None:
        """Adds a duration that was measured elsewhere."""
        self.total += seconds
        self._seconds = [*self._seconds, seconds][-MOST_SAMPLES:]

    def push_units_processed(self, units: float) -> None:
        """Says how much was done in the last duration."""
        self._units = [*self._units, units][-MOST_SAMPLES:]

    @property
    def mean(self) -> float:
        """Seconds; 0 before the first duration."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else 0.0

    @property
    def mean_throughput(self) -> float:
        """Units per second."""
        seconds = sum(self._seconds[-len(self._units) :]) if self._units else 0.0
        return sum(self._units) / seconds if seconds else 0.0


class MetricsContext:
    """Counters, timers, further information, and the worker that the present item comes from."""

    def __init__(self) -> None:
        """Has counted nothing."""
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.timers: defaultdict[str, BlockTimer] = defaultdict(BlockTimer)
        self.info: dict[str, Any] = {}
        self.current_actor: Any = None


class SharedMetrics:
    """The context of a chain, which is that of its parents as well once chains are joined."""

    def __init__(self, parents: Sequence[SharedMetrics] = ()) -> None:
        """Gives all parents this context, with everything that they have counted so far."""
        self._metrics, self._parents = MetricsContext(), list(parents)
        for before in {id(parent.get()): parent.get() for parent in parents}.values():
            for name, count in before.counters.items():
                self._metrics.counters[name] += count
            self._metrics.timers.update(before.timers)
            self._metrics.info.update(before.info)
        for parent in parents:
            parent.set(self._metrics)

    def set(self, metrics: MetricsContext) -> None:
        """Uses another context from now on, here and in the parents."""
        self._metrics = metrics
        for parent in self._parents:
            parent.set(metrics)

    def get(self) -> MetricsContext:
        """The present one."""
        return self._metrics
