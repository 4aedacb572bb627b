"""When something is due, by a clock that is handed in."""

from __future__ import annotations

import math

SHARE = 1 / 40
"""Of the time so far, between two points of a curve."""


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


class Thinning:
    """Due after a fortieth of the time since the beginning: ever more rarely, up to an interval.

    So a run has about a hundred points, whether it takes seconds or days, and few of them for each second of its time.
    """

    def __init__(self, least_s: float = 0.0) -> None:
        """Begins with the first question. No two points are nearer than `least_s`."""
        self.least_s = least_s
        self.began_s = math.nan
        self.last_s = -math.inf
        """When the last point was made; set it to put the next one off."""

    def is_due(self, now_s: float, most_s: float) -> bool:
        """Whether the last point is long enough ago; `most_s` always is."""
        if math.isnan(self.began_s):
            self.began_s = now_s
        return now_s - self.last_s >= min(most_s, max(self.least_s, SHARE * (now_s - self.began_s)))
