"""A duel in which one agent wins what the other loses, whatever they do. Without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from sf.envs import register_env

LENGTH = 4


class Duel:
    """Agent 0 is paid 2 in each step and reports as many hits as there were steps; agent 1 pays for it."""

    num_agents = 2
    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def __init__(self) -> None:
        self.t = 0

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return self.seen(), [{}, {}]

    def step(self, actions: Any) -> Any:
        self.t += 1
        over = [self.t == LENGTH] * 2
        return self.seen(), [2.0, -2.0], over, [False, False], [{"metrics": {"hits/sum": 1}}, {}]

    def seen(self) -> Any:
        return [np.zeros(2, np.float32)] * 2

    def close(self) -> None:
        pass


register_env("duel", Duel)
