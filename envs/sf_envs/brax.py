"""Environments of Brax, ``brax/ant``, many of them in one step of JAX.

Freeman et al. (2021), "Brax - A Differentiable Physics Engine for Large Scale Rigid Body Simulation". As in its own
training, an episode of a copy begins where the first one of this copy began.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from sf_envs.jax_simulator import JaxSimulator
from sf_envs.members import unknown_member

with contextlib.redirect_stdout(io.StringIO()):  # it says which engines are not there
    from brax import envs


def make(name: str, num_envs: int, max_episode_steps: int, **settings: Any) -> JaxSimulator:
    """Copies of an environment.

    Args:
        name: in Brax.
        num_envs: copies.
        max_episode_steps: longest episode.
        settings: arguments of its constructor, such as `backend`.

    Raises:
        EnvError: there is no such environment.
    """
    if name not in envs._envs:
        raise unknown_member("brax", "environment of Brax", name, envs._envs)
    env = envs.get_environment(name, **settings)
    return JaxSimulator(Stateful(env, max_episode_steps), num_envs, f"brax/{name}")


class Stateful:
    """An environment whose state holds observation, reward and end, as those of Brax and MuJoCo Playground do."""

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        """Takes an environment that neither counts steps nor resets by itself."""
        self._env, self._longest = env, max_episode_steps
        seen = jax.eval_shape(env.reset, jax.random.key(0)).obs
        self.observation_space = _space(seen)
        size = env.action_size
        self.action_space: gymnasium.Space[Any] = spaces.Box(-1.0, 1.0, (size,), np.float32)

    def reset(self, key: Any) -> tuple[Any, Any]:
        state = self._env.reset(key)
        return state.obs, (state, state, jnp.zeros((), jnp.int32))

    def again(self, key: Any, state: Any) -> tuple[Any, Any]:
        first = state[1]
        return first.obs, (first, first, jnp.zeros((), jnp.int32))

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any, Mapping[str, Any]]:
        before, first, steps = state
        after = self._env.step(before, action)
        steps = steps + 1
        terminated = after.done > 0
        return after.obs, (after, first, steps), after.reward, terminated, (steps >= self._longest) & ~terminated, {}


def _space(seen: Any) -> gymnasium.Space[Any]:
    """Numbers without limits, in the nest that the environment returns."""
    if isinstance(seen, Mapping):
        return spaces.Dict({key: _space(part) for key, part in seen.items()})
    return spaces.Box(-np.inf, np.inf, seen.shape, np.float32)
