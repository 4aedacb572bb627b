"""When something is due, by a clock that is handed in."""

from __future__ import annotations

import math


class Timer:
    """Due at once, and then every `interval_s` seconds on a fixed grid."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._next_s = -math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether the moment has come; says so once. Missed times are left out."""
        if now_s < self._next_s:
            return False
        first = self._next_s == -math.inf
        missed = 0.0 if first else (now_s - self._next_s) // self.interval_s
        self._next_s = (now_s if first else self._next_s + missed * self.interval_s) + self.interval_s
        return True
