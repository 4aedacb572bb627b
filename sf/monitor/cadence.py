"""When something is due, by a clock that is handed in."""

from __future__ import annotations

import itertools
import math

SUMMARY_INTERVALS = ((0, 2.0), (100_000, 60.0), (1_000_000, 120.0))
"""Policy version to the least seconds between two summaries of training; linear in between, constant after."""


class Timer:
    """Due at once, and then every `interval_s` seconds on a fixed grid."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._next_s = -math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether the moment has come; says so once. What was missed meanwhile is left out."""
        if now_s < self._next_s:
            return False
        first = self._next_s == -math.inf
        missed = 0.0 if first else (now_s - self._next_s) // self.interval_s
        self._next_s = (now_s if first else self._next_s + missed * self.interval_s) + self.interval_s
        return True


def train_summary_interval_s(version: int) -> float:
    """Least seconds between two summaries of training at this policy version."""
    for (start, start_s), (end, end_s) in itertools.pairwise(SUMMARY_INTERVALS):
        if version <= end:
            return start_s + (end_s - start_s) * (version - start) / (end - start)
    return SUMMARY_INTERVALS[-1][1]
