"""An environment whose reward depends on an argument that a population may change."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

EPISODE = 4


class Shaped(gymnasium.Env[Any, Any]):
    """Pays `bonus` in each of four steps, and shows the bonus with which the episode began and the one of now."""

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, bonus: float = 1.0) -> None:
        self.bonus = bonus

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.at_first = 0, self.bonus
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._seen(), self.bonus, self.steps == EPISODE, False, {}

    def _seen(self) -> Any:
        return np.array([self.at_first, self.bonus], np.float32)


gymnasium.register("Bonus-v0", entry_point="tests.environments.shaped:Shaped")
