"""Results of games between policy 0 and another policy: a ring in shared memory for each rollout worker."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sf.shared.arena import Arena, Array, Field
from sf.shared.order import observe, publish

MATCHES, MATCHES_COUNT = "records/matches", "records/matches/count"
MATCHES_KEPT = 4096
"""Games per worker that may end between two polls, twice over: the reader takes the newer half at most."""
MIXED = -2
"""In place of a version: the opponent changed during the game."""


class Match(NamedTuple):
    """One game that is over."""

    opponent: int
    """The policy that played against policy 0."""
    version: int
    """Version that acted for the opponent in each of its steps, or MIXED."""
    score: float
    """Score of policy 0: 1 for a larger mean return than that of the opponent, 0.5 for the same, else 0."""


def match_fields(num_workers: int) -> dict[str, Field]:
    """The shared arrays behind all rings."""
    return {
        MATCHES: Field((num_workers, MATCHES_KEPT, len(Match._fields)), "float64"),
        MATCHES_COUNT: Field((num_workers,), "int64"),
    }


class MatchRing:
    """The last games that one rollout worker has seen the end of."""

    def __init__(self, arena: Arena, worker: int) -> None:
        """Finds the ring of a worker."""
        self._matches: Array = arena[MATCHES][worker]
        self._count: Array = arena[MATCHES_COUNT][worker : worker + 1]
        self._read = int(self._count[0])

    def append(self, match: Match) -> None:
        """Writer: adds one game."""
        count = int(self._count[0])
        self._matches[count % MATCHES_KEPT] = match
        publish(self._count, 0, count + 1)

    def new_matches(self) -> list[Match]:
        """Reader: games since the last call, oldest first; only the newest if there were too many."""
        count = int(observe(self._count, 0))
        start = max(self._read, count - MATCHES_KEPT // 2)  # the writer may be overwriting the older half meanwhile
        self._read = count
        rows = self._matches[np.arange(start, count) % MATCHES_KEPT].tolist()
        return [Match(int(opponent), int(version), score) for opponent, version, score in rows]
