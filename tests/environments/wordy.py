"""An environment whose metric is a word."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Wordy(gymnasium.Env[Any, Any]):
    """Episodes of ten steps with a reward of one each, and "yes" where a success is a number."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 10, False, {"is_success": "yes"}


gymnasium.register("Wordy-v0", "tests.environments.wordy:Wordy")
