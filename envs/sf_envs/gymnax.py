"""Environments of gymnax, ``gymnax/CartPole-v1``, many of them in one step of JAX.

Lange (2022), "gymnax: A JAX-based reinforcement learning environment library".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import gymnax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnax.registration import registered_envs

from sf.errors import EnvError
from sf_envs.jax_simulator import JaxSimulator
from sf_envs.members import parameters, unknown_member

UNLIMITED = 2**30
"""Steps that no episode reaches."""


def make(name: str, num_envs: int, max_episode_steps: int | None, **settings: Any) -> JaxSimulator:
    """Copies of an environment.

    Args:
        name: id in gymnax.
        num_envs: copies.
        max_episode_steps: longest episode; its own limit if None.
        settings: parameters of the environment, such as `gravity`.

    Raises:
        EnvError: there is no such environment or parameter.
    """
    if name not in registered_envs:
        raise unknown_member("gymnax", "environment of gymnax", name, registered_envs)
    env, params = gymnax.make(name)
    if max_episode_steps is not None:
        own = settings.get("max_steps_in_episode", params.max_steps_in_episode)
        settings["max_steps_in_episode"] = min(max_episode_steps, own)
    return JaxSimulator(_Functions(env, parameters(f"gymnax/{name}", params, settings)), num_envs, f"gymnax/{name}")


class _Functions:
    """An environment of gymnax, without its own reset at the end of an episode, which hides the last observation."""

    def __init__(self, env: Any, params: Any) -> None:
        self._env, self._params = env, params
        self._unlimited = params.replace(max_steps_in_episode=UNLIMITED)
        self.observation_space = _space(env.observation_space(params))
        self.action_space = _space(env.action_space(params))
        box = self.observation_space
        self._dtype = box.dtype if isinstance(box, spaces.Box) else None

    def reset(self, key: Any) -> tuple[Any, Any]:
        observation, state = self._env.reset_env(key, self._params)
        return self._seen(observation), state

    def again(self, key: Any, state: Any) -> tuple[Any, Any]:
        return self.reset(key)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any, Mapping[str, Any]]:
        before = state
        observation, state, reward, done, _ = self._env.step_env(key, before, action, self._params)
        # The same step without a limit of time; what both have in common is computed once.
        ended = self._env.step_env(key, before, action, self._unlimited)[3]
        done, ended = (jnp.asarray(flag, bool).reshape(()) for flag in (done, ended))
        return self._seen(observation), state, jnp.asarray(reward).reshape(()), done & ended, done & ~ended, {}

    def _seen(self, observation: Any) -> Any:
        return observation if self._dtype is None else jnp.asarray(observation, self._dtype)


def _space(space: Any) -> gymnasium.Space[Any]:
    """The space of Gymnasium with the same meaning, whose float64 limits are of float32 as all arrays of JAX are."""
    match type(space).__name__:
        case "Discrete":
            return spaces.Discrete(int(space.n), dtype=np.int32)
        case "Box":
            dtype = np.dtype(np.float32) if np.dtype(space.dtype).kind == "f" else np.dtype(space.dtype)
            limits = (np.broadcast_to(np.asarray(limit, dtype), space.shape) for limit in (space.low, space.high))
            low, high = limits
            return spaces.Box(low.copy(), high.copy(), space.shape, dtype)
        case "Dict":
            return spaces.Dict({key: _space(part) for key, part in space.spaces.items()})
    raise EnvError(f"gymnax has a space {space!r}, expected a Box, a Discrete or a Dict of them.")
