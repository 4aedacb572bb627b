"""The share of random actions in the course of a run."""

from __future__ import annotations

from typing import NamedTuple


class EpsilonSchedule(NamedTuple):
    """It falls linearly, and then stays."""

    start: float
    """At the start of the run."""
    end: float
    """At its end."""
    fraction: float
    """The part of the run in which it falls from one to the other."""

    def at(self, progress: float) -> float:
        """The share where this part of the run, from 0 to 1, lies behind."""
        done = min(1.0, progress / self.fraction) if self.fraction > 0 else 1.0
        return self.start + done * (self.end - self.start)
