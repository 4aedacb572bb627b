"""CartPole whose policy sees positions, and whose critic sees the whole state."""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

Observation: TypeAlias = dict[str, npt.NDArray[np.float32]]

MAX_STEPS = 500


class HiddenVelocity(gymnasium.Env[Observation, Any]):
    """CartPole for asymmetric actors and critics.

    The observation ``obs``, [2], has the position of the cart and the angle of the pole. ``state``, [4], has their
    velocities as well. Each step is worth 1, and an episode is cut after 500 steps.

    Args:
        with_state: show ``state``; without it the observation is what a deployed policy has.
        render_mode: as for CartPole.
    """

    metadata = CartPoleEnv.metadata

    def __init__(self, with_state: bool = True, render_mode: str | None = None) -> None:
        self._cart_pole: gymnasium.Env[Any, Any] = CartPoleEnv(render_mode=render_mode)
        self.with_state, self.render_mode = with_state, render_mode
        parts: dict[str, spaces.Space[Any]] = {"obs": spaces.Box(-np.inf, np.inf, (2,), np.float32)}
        if with_state:
            parts["state"] = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.observation_space: spaces.Space[Any] = spaces.Dict(parts)
        self.action_space = self._cart_pole.action_space
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins near the upright position."""
        super().reset(seed=seed)
        self.steps = 0
        state, info = self._cart_pole.reset(seed=seed, options=options)
        return self._shown(state), info

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Pushes the cart to the left or to the right."""
        state, reward, terminated, _, info = self._cart_pole.step(action)
        self.steps += 1
        return self._shown(state), float(reward), terminated, self.steps >= MAX_STEPS, info

    def render(self) -> Any:
        """The picture of CartPole."""
        return self._cart_pole.render()

    def close(self) -> None:
        """Closes the window, if there is one."""
        self._cart_pole.close()

    def _shown(self, state: Any) -> Observation:
        state = np.asarray(state, np.float32)
        shown = {"obs": state[[0, 2]]}
        return shown | {"state": state} if self.with_state else shown
