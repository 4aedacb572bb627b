"""CartPole that is slow on the last rank of three."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class LateRank(CartPoleEnv):
    """Each step takes 10 ms there."""

    def step(self, action: Any) -> Any:
        if os.environ.get("RANK") == "2":
            time.sleep(0.01)
        return super().step(action)  # type: ignore[no-untyped-call]


gymnasium.register("LateRank-v0", "tests.helpers.late_rank:LateRank", max_episode_steps=500)
