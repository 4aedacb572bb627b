"""Environments of Jumanji, ``jumanji/Snake-v1``, many of them in one step of JAX.

Bonnet et al. (2024), "Jumanji: a Diverse Suite of Scalable Reinforcement Learning Environments in JAX".
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from sf.errors import EnvError
from sf_envs.jax_simulator import JaxSimulator
from sf_envs.members import unknown_member

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own dependencies
    import jumanji
    from jumanji import specs

MASK = "action_mask"


def make(name: str, num_envs: int, max_episode_steps: int | None, **settings: Any) -> JaxSimulator:
    """Copies of an environment.

    Args:
        name: id in Jumanji.
        num_envs: copies.
        max_episode_steps: longest episode beside the limit that the environment has itself; None for that alone.
        settings: arguments of its constructor, such as `time_limit`.

    Raises:
        EnvError: there is no such environment, or its actions are of a kind that policies do not have.
    """
    known = jumanji.registered_environments()
    if name not in known:
        raise unknown_member("jumanji", "environment of Jumanji", name, known)
    functions = _Functions(jumanji.make(name, **settings), max_episode_steps)
    return JaxSimulator(functions, num_envs, f"jumanji/{name}")


class _Functions:
    """Numbers of any type are observed as float32; a mask of the actions stays one, if it is for a single choice."""

    def __init__(self, env: Any, max_episode_steps: int | None) -> None:
        self._env, self._longest = env, max_episode_steps
        self.action_space, self._keeps_mask = _action_space(env.action_spec)
        seen = jax.eval_shape(lambda key: self._seen(env.reset(key)[1].observation), jax.random.key(0))
        self.observation_space = _observation_space(seen)

    def reset(self, key: Any) -> tuple[Any, Any]:
        state, first = self._env.reset(key)
        return self._seen(first.observation), (state, jnp.zeros((), jnp.int32))

    def again(self, key: Any, state: Any) -> tuple[Any, Any]:
        return self.reset(key)

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any, Mapping[str, Any]]:
        before, steps = state
        after, result = self._env.step(before, action)
        steps = steps + 1
        over, has_future = result.last(), jnp.any(result.discount > 0)
        terminated, truncated = over & ~has_future, over & has_future
        if self._longest is not None:
            truncated = truncated | ((steps >= self._longest) & ~terminated)
        reward = jnp.mean(jnp.asarray(result.reward, jnp.float32))  # of several agents, whose actions are one
        return self._seen(result.observation), (after, steps), reward, terminated, truncated, {}

    def _seen(self, observation: Any) -> Any:
        named = _named(observation)
        if not isinstance(named, Mapping):
            return jnp.asarray(named, jnp.float32)
        mask, others = named.get(MASK), {key: part for key, part in named.items() if key != MASK}
        seen = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), others)
        return seen if mask is None or not self._keeps_mask else {**seen, MASK: jnp.asarray(mask, jnp.int8)}


def _named(observation: Any) -> Any:
    """A nest of named tuples as dicts."""
    if hasattr(observation, "_asdict"):
        return {key: _named(part) for key, part in observation._asdict().items()}
    if isinstance(observation, Mapping):
        return {key: _named(part) for key, part in observation.items()}
    return observation


def _observation_space(seen: Any, key: str = "") -> gymnasium.Space[Any]:
    if isinstance(seen, Mapping):
        return spaces.Dict({name: _observation_space(part, name) for name, part in seen.items()})
    if key == MASK:
        return spaces.Box(0, 1, seen.shape, np.int8)
    return spaces.Box(-np.inf, np.inf, seen.shape, np.float32)


def _action_space(spec: Any) -> tuple[gymnasium.Space[Any], bool]:
    """The space of Gymnasium with the same meaning, and whether it is one choice."""
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(int(spec.num_values), dtype=np.int32), True
    if isinstance(spec, specs.MultiDiscreteArray):
        return spaces.MultiDiscrete(np.asarray(spec.num_values), dtype=np.int32), False
    if isinstance(spec, specs.BoundedArray) and np.issubdtype(spec.dtype, np.floating):
        ends: Callable[[Any], Any] = functools.partial(np.broadcast_to, shape=spec.shape)
        low, high = (np.array(ends(end), np.float32) for end in (spec.minimum, spec.maximum))
        return spaces.Box(low, high, dtype=np.float32), False
    raise EnvError(f"Jumanji has actions {spec!r}, expected one choice, several, or numbers with limits.")
