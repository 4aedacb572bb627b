"""When something is due, by a clock that is handed in."""

from __future__ import annotations

import math

SHARE = 1 / 40
"""Share of the time so far that lies between two points of a curve."""


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

    So a run of seconds has some ten points, one of an hour two hundred and more, and each costs little of its time.
    """

    def __init__(self, began_s: float | None = None) -> None:
        """Begins now, or with the first question; at once there is something to show in the second case only."""
        self._began_s = began_s
        self._last_s = -math.inf if began_s is None else began_s

    def is_due(self, now_s: float, most_s: float, least_s: float = 0.0, share: float = SHARE) -> bool:
        """Whether the last point is long enough ago: `most_s` always is, and less than `least_s` never."""
        if self._began_s is None:
            self._began_s = now_s
        return now_s - self._last_s >= min(most_s, max(least_s, share * (now_s - self._began_s)))

    def made(self, now_s: float) -> None:
        """Says that there is a point of this moment."""
        self._last_s = now_s

    def forget(self) -> None:
        """Makes the next question due."""
        self._last_s = -math.inf
