"""The limit under which the average policy lag comes near a target (`--target_policy_lag`)."""

from __future__ import annotations

import time

GAIN = 0.2
"""Share of the difference in one batch by which the limit changes."""
TOLD_EVERY_S = 10.0
TOLD_CHANGE = 0.25
"""Share by which the limit has changed since it was told."""


class LagTarget:
    """Integrates the difference between the target and the lag of each batch.

    With K optimizer steps on each batch and room for c of them, lags are (c - 1) K to c K - 1 while training holds the
    run back, with the mean target = (c - 1) K + (K - 1)/2. So the limit begins at the largest lag, c K - 1, that goes
    with the target. It moves where the learner is slow for a while, or the sampling.
    """

    def __init__(self, target: float, steps: int, batches_held: float) -> None:
        """Begins with the limit that the sizes promise.

        Args:
            target: mean policy lag.
            steps: K, optimizer steps on one batch.
            batches_held: for which the slots have room.
        """
        self.target = target
        self._least, self._most = steps - 1.0, max(1.0, batches_held) * steps - 1.0
        self.limit = self._within(target + (steps - 1) / 2)
        """Largest lag that admission may foresee."""
        self._told, self._told_s = self.limit, time.monotonic()

    def observe(self, lag: float) -> None:
        """Takes in the mean lag of one batch."""
        self.limit = self._within(self.limit + GAIN * (self.target - lag))

    def sentence(self) -> str:
        """What has changed, from time to time; else nothing."""
        now = time.monotonic()
        if now < self._told_s + TOLD_EVERY_S or abs(self.limit - self._told) <= TOLD_CHANGE * (self._told + 1.0):
            return ""
        self._told_s, before, self._told = now, self._told, self.limit
        return (
            f"Trajectories begin for lags up to {self.limit:.1f} (before: {before:.1f}), so that the average policy "
            f"lag stays near target_policy_lag={self.target:g}."
        )

    def _within(self, limit: float) -> float:
        return min(max(limit, self._least), self._most)
