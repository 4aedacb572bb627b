"""When a worker that died may be started again: at once, later, or never.

A worker that had delivered something is replaced at once. One that dies again before it delivers waits, twice as long
each time, because the cause of its death is likely to be there still. Deaths that come too fast use up the budget, and
so do deaths in vain, however slow they come.
"""

from __future__ import annotations

from collections import deque

PER_S = 60.0
FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 10.0


class Restarts:
    """The deaths of one worker."""

    def __init__(self, max_restarts: int):
        self.max_restarts = max_restarts
        self.total = 0
        self._recent_s: deque[float] = deque()
        self._in_vain = 0

    def delay_s(self, now_s: float, delivered: bool) -> float | None:
        """Seconds to wait before the next start; None after `max_restarts` within a minute, or in a row for nothing.

        Args:
            now_s: monotonic.
            delivered: whether the worker that died had done anything for others.
        """
        while self._recent_s and now_s - self._recent_s[0] > PER_S:
            self._recent_s.popleft()
        self._in_vain = 0 if delivered else self._in_vain + 1
        if len(self._recent_s) >= self.max_restarts or self._in_vain > self.max_restarts:
            return None
        self._recent_s.append(now_s)
        self.total += 1
        if delivered:
            return 0.0
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._in_vain - 1, 10))
