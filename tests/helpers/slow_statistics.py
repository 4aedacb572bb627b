"""Running statistics that keep every number they have ever seen, so that nothing is merged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.helpers.slow_returns import Transition


class SlowStatistics:
    """Statistics of observations, returns and discounted sums of rewards."""

    def __init__(self, initial_count: float) -> None:
        self.initial_count = initial_count
        self.seen: dict[str, list[Any]] = {"obs": [], "returns": [], "sums": []}
        self.sums: dict[int, float] = {}
        """Discounted sum of the rewards of the running episode, by environment row."""
        self._before: tuple[int, dict[int, float]] = 0, {}

    def moments(self, name: str) -> tuple[Any, Any]:
        """Mean and variance of all that was seen, and of the mean 0 and variance 1 that stand at the beginning."""
        samples, initial = np.array(self.seen[name]), self.initial_count
        if not len(samples):
            return 0.0, 1.0
        mean = samples.sum(0) / (len(samples) + initial)
        squares = ((samples - mean) ** 2).sum(0) + initial * (1 + mean**2)
        return mean, squares / (len(samples) + initial)

    def scale_rewards(
        self, columns: list[list[Transition]], gamma: float, counts: Callable[[Transition], bool]
    ) -> None:
        """Rows C30 and C31: all environments step together; the second trajectory of one follows its first.

        A step of another policy, or one that no policy chose, ends the sum as the end of an episode does.
        """
        self._before = len(self.seen["sums"]), dict(self.sums)
        streams = [column[0].trajectory.stream for column in columns]
        turns = [streams[:place].count(stream) for place, stream in enumerate(streams)]
        for turn in range(max(turns) + 1):
            together = [column for column, its_turn in zip(columns, turns, strict=True) if its_turn == turn]
            for steps in zip(*together, strict=True):
                for s in steps:
                    self._take_in(s, gamma, counts(s))
                deviation = math.sqrt(self.moments("sums")[1] + 1e-8)
                for s in steps:
                    s.reward = float(np.clip(s.reward / deviation, -10.0, 10.0))

    def _take_in(self, s: Transition, gamma: float, counts: bool) -> None:
        trajectory = s.trajectory
        total = gamma * self.sums.get(trajectory.stream, 0.0) + s.reward if counts else 0.0
        if counts:
            self.seen["sums"].append(total)
        self.sums[trajectory.stream] = 0.0 if trajectory.terminated[s.t] or trajectory.truncated[s.t] else total

    def forget_rewards(self) -> None:
        """What the last dataset has added; sums go on unless they are no numbers."""
        num_seen, sums = self._before
        del self.seen["sums"][num_seen:]
        self.sums = {row: x if math.isfinite(x) else sums.get(row, 0.0) for row, x in self.sums.items()}
