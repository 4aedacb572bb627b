"""Policy lag of the optimizer steps of a plan, counted as a learner counts it."""

from __future__ import annotations

from typing import Any

import numpy as np

from sf.monitor.lag_sight import LagCounted
from sf.monitor.snapshot import NO_LAG, Lag

MOST_COUNTED = 1024


class StepLags:
    """Optimizer steps before a step of a worker that learns, minus those that had led to the policy that acted."""

    def __init__(self) -> None:
        """Has seen no step."""
        self.last: Lag = NO_LAG
        self._steps, self._total, self._largest = 0, 0.0, -1.0
        self._counts = np.zeros(MOST_COUNTED + 1, np.int64)

    def note(self, num_steps: int, acted: Any) -> None:
        """Before a step.

        Args:
            num_steps: optimizer steps so far.
            acted: [n] optimizer steps that had led to the policy that acted, of each row.
        """
        lags = num_steps - np.asarray(acted)
        self.last = Lag(float(lags.min()), float(lags.mean()), float(lags.max()))
        self._steps, self._total = self._steps + 1, self._total + self.last.avg
        self._largest = max(self._largest, self.last.max)
        self._counts += np.bincount(np.clip(lags, 0, MOST_COUNTED), minlength=MOST_COUNTED + 1)

    def counted(self) -> LagCounted:
        """Everything so far; all of it counts as waiting."""
        return LagCounted(self._steps, self._total, 0.0, self._total, self._largest, self._counts.copy())
