"""An environment that is late in one place."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np


class LateWorker(gymnasium.Env[Any, Any]):
    """Episodes of ten steps with a reward of one each; the first one of the second worker takes long to make."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, sf_worker: int, sf_index: int) -> None:
        if (sf_worker, sf_index) == (1, 0):
            time.sleep(3.0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 10, False, {}


gymnasium.register("LateWorker-v0", "tests.environments.late_worker:LateWorker")
