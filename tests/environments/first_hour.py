"""Environments that are slow or never end, as a first user may bring them. Without torch."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Endless(gymnasium.Env[Any, Any]):
    """Counts its steps since the reset; no episode ever ends. Takes its time for a reset or a step if it is told to."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(self, reset_s: float = 0.0, step_s: float = 0.0, render_mode: str | None = None) -> None:
        self.reset_s, self.step_s, self.render_mode = reset_s, step_s, render_mode
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        time.sleep(self.reset_s)
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_s)
        self.steps += 1
        return self.seen(), 1.0, False, False, {}

    def seen(self) -> Any:
        return np.full(1, self.steps, np.float32)

    def render(self) -> Any:
        return np.full((16, 16, 3), self.steps % 256, np.uint8)


class EndlessPair:
    """The same for two agents, after the multi-agent protocol."""

    num_agents = 2
    observation_space, action_space = Endless.observation_space, Endless.action_space

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, **_: Any) -> Any:
        self.steps = 0
        return self.seen(), [{}, {}]

    def step(self, actions: Any) -> Any:
        assert len(actions) == 2
        self.steps += 1
        return self.seen(), [1.0, 2.0], [False, False], [False, False], [{}, {}]

    def seen(self) -> Any:
        return [np.full(1, self.steps, np.float32)] * 2

    def close(self) -> None:
        """Nothing to do."""


gymnasium.register("Endless-v0", entry_point="tests.environments.first_hour:Endless")
