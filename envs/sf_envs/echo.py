"""A two-agent environment for training several policies at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Vector = npt.NDArray[np.float32]

NUM_SYMBOLS = 4
EPISODE_STEPS = 16


class TwoAgentEcho:
    """Each agent sees a symbol as a one-hot vector and earns 1 for naming it; the optimum is 16 per episode.

    Half of the reward depends on the partner. An agent that names its symbol earns 0.5, and 0.5 more if the other agent
    names its own. A random policy reaches about 4. Follows the multi-agent protocol of `sf.envs`.
    """

    num_agents = 2

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (NUM_SYMBOLS,), np.float32)
        self.action_space = spaces.Discrete(NUM_SYMBOLS)
        self.random = np.random.default_rng()
        self.symbols = [0, 0]
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Vector], list[dict[str, Any]]]:
        """Starts an episode."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.steps = 0
        return self._observe(), [{}, {}]

    def step(
        self, actions: list[int]
    ) -> tuple[list[Vector], list[float], list[bool], list[bool], list[dict[str, Any]]]:
        """Compares what the agents named with what they saw."""
        right = [action == symbol for action, symbol in zip(actions, self.symbols, strict=True)]
        rewards = [0.5 * own + 0.5 * (own and other) for own, other in (right, right[::-1])]
        self.steps += 1
        cut = self.steps == EPISODE_STEPS
        return self._observe(), rewards, [False, False], [cut, cut], [{}, {}]

    def close(self) -> None:
        """Nothing to close."""

    def _observe(self) -> list[Vector]:
        self.symbols = [int(symbol) for symbol in self.random.integers(NUM_SYMBOLS, size=self.num_agents)]
        one_hot = np.eye(NUM_SYMBOLS, dtype=np.float32)
        return [one_hot[symbol] for symbol in self.symbols]
