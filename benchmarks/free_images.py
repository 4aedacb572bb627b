"""An image environment that costs nothing: the same random picture again and again, in episodes of 1,000 steps.

sf-train --env=free_images:FreeImages-v0        with this folder on PYTHONPATH
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector.utils import batch_space

PICTURE = np.random.default_rng(0).integers(0, 256, (4, 84, 84), np.uint8)
LENGTH = 1000
OBSERVATIONS, ACTIONS = Box(0, 255, PICTURE.shape, np.uint8), Discrete(6)


class FreeImages(gymnasium.Env[Any, Any]):
    """One of them."""

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return PICTURE, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return PICTURE, 0.0, self.steps == LENGTH, False, {}


class ManyFreeImages(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Many in one call; they end in the same step and begin anew in it."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = OBSERVATIONS, ACTIONS
        self.observation_space = batch_space(OBSERVATIONS, num_envs)
        self.action_space = batch_space(ACTIONS, num_envs)
        self.pictures = np.repeat(PICTURE[None], num_envs, 0)
        self.no_rewards, self.nobody = np.zeros(num_envs), np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.pictures, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.steps += 1
        if self.steps < LENGTH:
            return self.pictures, self.no_rewards, self.nobody, self.nobody, {}
        self.steps = 0
        final = {"final_obs": list(self.pictures), "_final_obs": ~self.nobody}
        return self.pictures, self.no_rewards, ~self.nobody, self.nobody, final


gymnasium.register("FreeImages-v0", FreeImages, vector_entry_point=ManyFreeImages)
