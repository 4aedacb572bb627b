"""The seed of each episode and the actions in it, which bring environments back to where they were.

The state of a foreign environment cannot be written down. But an environment that keeps the Gymnasium interface repeats
itself, given the seed of a reset and the actions since. With a history every reset therefore has a seed of its own. The
actions of an episode that never ends would take ever more memory, and ever more time to repeat. Beyond a bound they are
forgotten, and until that episode ends a resumed run begins new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sf.shared.arena import Array

MOST_BYTES = 256 * 2**10
"""Most bytes for the actions of one episode: 32,768 steps with one choice, or 3,855 with 17 numbers."""


class History:
    """Seeds and actions of the environments of one group."""

    def __init__(self, seeds: Sequence[int]):
        self.seeds = list(seeds)
        self.episodes = [0] * len(self.seeds)
        self._actions: list[bytearray | None] = [bytearray() for _ in self.seeds]
        """Actions of the present episode, as rows of the slots, one after the other; None where there are too many."""
        self._dtype, self._shape = np.dtype("int64"), ()

    @property
    def is_whole(self) -> bool:
        """Whether it brings every environment back to where it is."""
        return None not in self._actions

    def begin(self, index: int) -> int:
        """An environment is about to be reset; returns the seed for it."""
        self.episodes[index] += 1
        self._actions[index] = bytearray()
        return self.seed(index)

    def seed(self, index: int) -> int:
        """Seed of the present episode; the first one has that of the environment."""
        first, number = self.seeds[index], self.episodes[index]
        if number == 1:
            return first
        return int(np.random.SeedSequence([first, number]).generate_state(1)[0]) % 2**31

    def add(self, actions: Array) -> None:
        """One step of each environment; episodes that it ends begin anew later in the same step."""
        self._dtype, self._shape = actions.dtype, actions.shape[1:]
        for index, (own, action) in enumerate(zip(self._actions, actions, strict=True)):
            if own is None:
                continue
            own += action.tobytes()
            if len(own) > MOST_BYTES:
                self._actions[index] = None

    def actions(self, index: int) -> Array:
        """[n, ...] of the present episode of one environment."""
        own = self._actions[index]
        assert own is not None, "the episode was too long"
        return np.frombuffer(own, self._dtype).reshape(-1, *self._shape).copy()  # a view would keep it from growing

    def state(self) -> dict[str, Any]:
        """In plain JSON types, if it is whole."""
        actions = [self.actions(index).tolist() for index in range(len(self.seeds))]
        return {"seeds": self.seeds, "episodes": self.episodes, "actions": actions}

    def load_state(self, state: dict[str, Any], dtype: str) -> None:
        """The inverse of `state`; `dtype` is that of the stored actions."""
        self.seeds, self.episodes = state["seeds"], state["episodes"]
        self._dtype, actions = np.dtype(dtype), [np.array(own, dtype) for own in state["actions"]]
        self._shape = next((own.shape[1:] for own in actions if len(own)), ())
        self._actions = [bytearray(own.tobytes()) for own in actions]
