"""An environment that says where it is, so that mixed-up, lost or repeated data shows."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Vector = npt.NDArray[np.float32]

_numbers = itertools.count()


class Counter(gymnasium.Env[Vector, Any]):
    """Observes (number of this environment in its process, episode, step); the reward of a step is its number.

    Args:
        episode_steps: length of an episode; 0 for one that never ends.
        truncate: whether episodes are cut (truncated) instead of terminated.
        continuous: one unbounded action in place of two choices.
        reward: a constant reward for every step in place of the number of the step.
    """

    def __init__(
        self, episode_steps: int = 10, truncate: bool = False, continuous: bool = False, reward: float | None = None
    ) -> None:
        self.episode_steps, self.truncate, self.reward = episode_steps, truncate, reward
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32) if continuous else spaces.Discrete(2)
        self.number = next(_numbers)
        self.episode, self.steps = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Starts the next episode."""
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Counts one step."""
        self.steps += 1
        over = self.steps == self.episode_steps
        reward = float(self.steps) if self.reward is None else self.reward
        return self._observe(), reward, over and not self.truncate, over and self.truncate, {}

    def _observe(self) -> Vector:
        return np.array([self.number, self.episode, self.steps], np.float32)
