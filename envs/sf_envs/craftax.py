"""Craftax, ``craftax/Craftax-Classic-Symbolic-v1``: a survival game, many copies of it in one step of JAX.

Matthews et al. (2024), "Craftax: A Lightning-Fast Benchmark for Open-Ended Reinforcement Learning".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
from craftax.craftax_env import make_craftax_env_from_name
from gymnasium import spaces

from sf_envs.jax_simulator import JaxSimulator
from sf_envs.members import parameters, unknown_member

NAMES = (
    "Craftax-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Classic-Pixels-v1",
)  # fmt: skip
UNLIMITED = 2**30
"""Steps that no episode reaches."""


def make(name: str, num_envs: int, max_episode_steps: int | None, **settings: Any) -> JaxSimulator:
    """Copies of one of its games.

    Args:
        name: one of `NAMES`.
        num_envs: copies.
        max_episode_steps: longest episode; its own limit if None.
        settings: parameters of the game, such as `day_length`.

    Raises:
        EnvError: there is no such game or parameter.
    """
    if name not in NAMES:
        raise unknown_member("craftax", "game of Craftax", name, NAMES)
    env = make_craftax_env_from_name(name, auto_reset=False)
    own = env.default_params
    if max_episode_steps is not None:
        settings["max_timesteps"] = min(max_episode_steps, settings.get("max_timesteps", own.max_timesteps))
    return JaxSimulator(Game(env, parameters(f"craftax/{name}", own, settings)), num_envs, f"craftax/{name}")


class Game:
    """A game as functions; an episode that its limit of steps ends is truncated."""

    def __init__(self, env: Any, params: Any) -> None:
        """Plays with these parameters."""
        self._env, self._params = env, params
        self._unlimited = params.replace(max_timesteps=UNLIMITED)
        box = env.observation_space(params)
        self.observation_space: gymnasium.Space[Any] = spaces.Box(0.0, 1.0, box.shape, np.float32)
        self.action_space: gymnasium.Space[Any] = spaces.Discrete(int(env.action_space(params).n), dtype=np.int32)

    def reset(self, key: Any) -> tuple[Any, Any]:
        """A new world."""
        observation, state = self._env.reset_env(key, self._params)
        return observation.astype(jnp.float32), state

    def again(self, key: Any, state: Any) -> tuple[Any, Any]:
        """Another world."""
        return self.reset(key)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any, Mapping[str, Any]]:
        """One step; `achievements` is the number of those that this episode has had."""
        observation, state, reward, done, _ = self._env.step_env(key, state, action, self._params)
        ended = self._env.is_terminal(state, self._unlimited)
        metrics = {"achievements": state.achievements.sum().astype(jnp.float32)}
        return observation.astype(jnp.float32), state, reward, done & ended, done & ~ended, metrics
