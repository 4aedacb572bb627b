"""How long the rest of a sweep may take, from the runs that have ended."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from sf.tools.sweep.trials import TrialRun


class Forecast:
    """Has no clock: each call brings the time."""

    def __init__(self, jobs: int, earlier_s: Iterable[float] = ()) -> None:
        """Begins.

        Args:
            jobs: runs at once.
            earlier_s: seconds that runs of earlier starts have taken.
        """
        self._jobs, self._took_s = jobs, list(earlier_s)
        self._began_s: dict[TrialRun, float] = {}

    def began(self, run: TrialRun, now_s: float) -> None:
        """A run begins."""
        self._began_s[run] = now_s

    def ended(self, run: TrialRun, now_s: float, counts: bool) -> None:
        """A run has ended; one that has failed says nothing of the others, and so does one that was stopped."""
        began_s = self._began_s.pop(run, None)
        if began_s is not None and counts:
            self._took_s.append(now_s - began_s)

    @property
    def num_running(self) -> int:
        """Runs that have begun and not ended."""
        return len(self._began_s)

    def left_s(self, num_left: int, now_s: float) -> float | None:
        """Seconds until so many runs, those that go on included, have ended; None if none has ended yet."""
        if not self._took_s:
            return None
        mean_s = statistics.fmean(self._took_s)
        going_on_s = [max(0.0, mean_s - (now_s - began_s)) for began_s in self._began_s.values()]
        waiting = max(0, num_left - len(going_on_s))
        together_s = (waiting * mean_s + sum(going_on_s)) / max(1, min(self._jobs, num_left))
        return max(together_s, *going_on_s, 0.0)
