"""What it takes to bring environments back to where they are: the seed of each episode, and what was done in it.

Nobody can write down the state of an environment that somebody else wrote. But one that keeps the Gymnasium interface
repeats itself, given the seed of a reset and the actions since. With a history every reset therefore has a seed of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sf.arena import Array


class History:
    """Of the environments of one group."""

    def __init__(self, seeds: Sequence[int]):
        self.seeds = list(seeds)
        self.episodes = [0] * len(self.seeds)
        self.actions: list[list[Array]] = [[] for _ in self.seeds]
        """Of the present episode, as rows of the slots."""

    def begin(self, index: int) -> int:
        """An environment is about to be reset; returns the seed for it."""
        self.episodes[index] += 1
        self.actions[index] = []
        return self.seed(index)

    def seed(self, index: int) -> int:
        """Of the present episode; the first one has that of the environment."""
        first, number = self.seeds[index], self.episodes[index]
        if number == 1:
            return first
        return int(np.random.SeedSequence([first, number]).generate_state(1)[0]) % 2**31

    def add(self, actions: Iterable[Array]) -> None:
        """One step of each environment; what it ends by begins anew later in the same step."""
        for own, action in zip(self.actions, actions, strict=True):
            own.append(np.array(action))

    def state(self) -> dict[str, Any]:
        """In plain JSON types."""
        actions = [np.stack(own).tolist() if own else [] for own in self.actions]
        return {"seeds": self.seeds, "episodes": self.episodes, "actions": actions}

    def load_state(self, state: dict[str, Any], dtype: str) -> None:
        """The inverse of `state`; `dtype` is that of the stored actions."""
        self.seeds, self.episodes = state["seeds"], state["episodes"]
        self.actions = [list(np.array(own, dtype)) for own in state["actions"]]
