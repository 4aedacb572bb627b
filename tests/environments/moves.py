"""A game of two sides with a move that is better than the others."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

MOVES, STEPS = 3, 4


class LargerMove(gym.Env[Any, Any]):
    """The larger move of each step wins a point; after four steps the game is over."""

    num_agents = 2
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(MOVES)

    def __init__(self) -> None:
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begins a game."""
        self.t = 0
        return self._seen(), [{}, {}]

    def step(self, actions: Any) -> Any:
        """One move of both."""
        self.t += 1
        lead = float(np.sign(int(actions[0]) - int(actions[1])))
        over = self.t == STEPS
        return self._seen(), [lead, -lead], [over, over], [False, False], [{}, {}]

    def _seen(self) -> list[Any]:
        return [np.array([self.t / STEPS], np.float32)] * 2


def best(observation: Any, random: np.random.Generator) -> int:
    """Always the largest move."""
    return MOVES - 1


def worst(observation: Any, random: np.random.Generator) -> int:
    """Always the smallest move."""
    return 0
