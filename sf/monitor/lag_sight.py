"""Policy lag of all transitions: how it is distributed, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sf.shared.arena import Array
from sf.shared.records import LAGS_COUNTED


class LagBySource(NamedTuple):
    """Mean policy lag in optimizer steps, and the parts that add up to it."""

    acting: float
    """While the trajectory was being collected, until its last step."""
    queued: float
    """While the trajectory waited for its dataset; with replay, everything."""
    epochs: float
    """Since the first optimizer step on its dataset."""

    @property
    def mean(self) -> float:
        """All parts."""
        return sum(self)


@dataclass(frozen=True)
class LagCounted:
    """Everything that the learners of a policy have counted since a start."""

    steps: int = 0
    """Optimizer steps."""
    total: float = 0.0
    """Sum over the steps of the mean lag of their minibatches."""
    acting: float = 0.0
    """The part of it that came up while acting."""
    queued: float = 0.0
    """The part of it that came up while waiting."""
    largest: float = -1.0
    counts: Array = field(default_factory=lambda: np.zeros(1, np.int64))
    """[lags] transitions that had each lag in an optimizer step; the last one counts larger lags too."""

    @property
    def mean(self) -> float:
        """Over all optimizer steps; -1 before the first one."""
        return self.total / self.steps if self.steps else -1.0

    @property
    def by_source(self) -> LagBySource:
        """Over all optimizer steps, of which there must be one."""
        acting, queued = self.acting / self.steps, self.queued / self.steps
        return LagBySource(acting, queued, self.mean - acting - queued)

    def with_step(self, lags: Array) -> LagCounted:
        """With one optimizer step more on transitions of these lags [n], all of which came up while they waited."""
        mean = float(lags.mean())
        counts = np.bincount(np.clip(lags, 0, LAGS_COUNTED), minlength=LAGS_COUNTED + 1)
        counts[: len(self.counts)] += self.counts
        largest = max(self.largest, float(lags.max()))
        return LagCounted(self.steps + 1, self.total + mean, self.acting, self.queued + mean, largest, counts)

    def since(self, earlier: LagCounted) -> LagCounted:
        """What has come since an earlier moment."""
        counts = self.counts.copy()
        counts[: len(earlier.counts)] -= earlier.counts
        return LagCounted(
            self.steps - earlier.steps, self.total - earlier.total, self.acting - earlier.acting,
            self.queued - earlier.queued, self.largest, counts,
        )  # fmt: skip

    def scalars(self) -> dict[str, float]:
        """Curves of the lag by source; none without an optimizer step."""
        if not self.steps:
            return {}
        return {f"lag/{name}": value for name, value in self.by_source._asdict().items()}

    def to_json(self) -> dict[str, Any]:
        """For summary.json; the histogram begins with lag 0 and ends with the largest lag."""
        if not self.steps:
            return {"avg": -1.0, "max": -1.0}
        counts = np.trim_zeros(self.counts, "b").tolist()
        return {"avg": self.mean, "max": self.largest, **self.by_source._asdict(), "histogram": counts}
