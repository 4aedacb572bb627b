"""Finds processes that live and do not get on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sf.shared.progress import Phase, Progress, phase_of

LONGEST_GAP_S = 1.0
"""More than this between two looks counts for nothing: the run was stopped or starved, or a callback took long."""


class Hang(NamedTuple):
    """An activity that takes a process too long."""

    phase: Phase
    environment: int
    seconds: float
    deadline_s: float


class HangWatch:
    """Looks at the progress of one process, again and again."""

    def __init__(self, progress: Progress, deadlines_s: Mapping[Phase, float], now_s: float):
        """Begins to look.

        Args:
            progress: of the process.
            deadlines_s: the longest that it may stay in each phase; phases that are not there may last for ever.
            now_s: monotonic.
        """
        self.word, self.deadlines_s = progress.word, deadlines_s
        self._seen, self._since_s, self._looked_s = self.word[0], now_s, now_s

    def age_s(self, now_s: float) -> float:
        """Seconds since the process was seen to get on."""
        return now_s - self._since_s

    def look(self, now_s: float) -> Hang | None:
        """Whether the process hangs, by its progress since the last look."""
        self._since_s += max(0.0, now_s - self._looked_s - LONGEST_GAP_S)
        self._looked_s = now_s
        if self.word[0] != self._seen:
            self._seen, self._since_s = self.word[0], now_s
            return None
        phase, environment = phase_of(self._seen)
        deadline = self.deadlines_s.get(phase)
        if deadline is None or self.age_s(now_s) <= deadline:
            return None
        return Hang(phase, environment, self.age_s(now_s), deadline)
