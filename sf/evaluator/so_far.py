"""How far an evaluation is, in shared memory that each of its processes writes a row of."""

from __future__ import annotations

import numpy as np

from sf.console import rounded
from sf.evaluator.tally import Tally
from sf.shared.arena import Arena, Array, Field

NUM_COUNTS = 2
"""Columns before those of the policies: episodes that have ended, and steps of each environment."""


class SoFar:
    """Written after every step, read at any time. A number that is read may be a step older than its neighbour."""

    def __init__(self, num_workers: int, num_policies: int) -> None:
        """Shares the memory.

        Args:
            num_workers: processes that play.
            num_policies: that play together.
        """
        self._arena = Arena({"so_far": Field((num_workers, NUM_COUNTS + 2 * num_policies), "float64")})

    @property
    def _rows(self) -> Array:
        """[workers, counts of the process, then count and sum of the returns of each policy]."""
        return self._arena["so_far"]

    def writer(self, worker: int) -> RowWriter:
        """Writer of one process."""
        return RowWriter(self._rows[worker])

    def told(self, env_id: str, wanted: int, seconds: float) -> str:
        """A sentence for the user.

        Args:
            env_id: of the environments.
            wanted: episodes of all processes.
            seconds: since the evaluation began.
        """
        rows, time = self._rows, f"{seconds:.0f} s so far"
        if not rows[:, 1].any():
            return f"Evaluating on {env_id}: environments are being made or reset, {time}."
        done, steps = int(rows[:, 0].sum()), rows[:, 1].mean()
        counts, sums = rows[:, NUM_COUNTS::2].sum(0), rows[:, NUM_COUNTS + 1 :: 2].sum(0)
        means = [rounded(total / count) for count, total in zip(counts, sums, strict=True) if count]
        reached = f"mean return {', '.join(means)}, " if means else ""
        return (
            f"Evaluating on {env_id}: {done:,} of {wanted:,} episodes have ended, {reached}{steps:,.0f} steps of each "
            f"environment, {time}."
        )


class RowWriter:
    """Keeps the row of one process."""

    def __init__(self, row: Array) -> None:
        self._row = row
        self._seen = [0] * ((len(row) - NUM_COUNTS) // 2)
        """Episodes of each policy that are summed up already."""

    def look(self, tally: Tally, steps: int) -> None:
        """Takes in what has ended.

        Args:
            tally: of the process.
            steps: that each environment has taken.
        """
        for policy_id, episodes in enumerate(tally.episodes):
            if new := episodes.rewards[self._seen[policy_id] :]:
                self._seen[policy_id] += len(new)
                columns = slice(NUM_COUNTS + 2 * policy_id, NUM_COUNTS + 2 * policy_id + 2)
                self._row[columns] += len(new), np.sum(new)
        self._row[:NUM_COUNTS] = tally.num_done, steps
