"""Environments that are functions of JAX, as simulators in tensors: copies by `vmap`, compiled once, without a copy.

Arrays pass from JAX to torch and back through DLPack. Steps and resets are compiled when the simulator is made, so that
no time of a training is spent on it.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from sf.console import Console
from sf.errors import EnvError

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes most of an accelerator's memory at once

TOLD_FROM_S = 5.0
"""Compilations that take longer are told of."""


class Functions(Protocol):
    """One environment, as functions of JAX without side effects."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Observation and state at the beginning of an episode."""

    def again(self, key: Any, state: Any) -> tuple[Any, Any]:
        """The same after the end of an episode, of which `state` is the last one."""

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any, Mapping[str, Any]]:
        """Observation, state, reward, terminated, truncated, and metrics by name. It does not reset."""


class JaxSimulator:
    """A `sf.envs.tensors.TensorEnv`."""

    def __init__(self, functions: Functions, num_envs: int, name: str) -> None:
        """Compiles steps and resets of `num_envs` copies, and says how long that took where it was long."""
        self.num_envs, self._functions = num_envs, functions
        self.observation_space, self.action_space = functions.observation_space, functions.action_space
        self._key = jax.random.key(0)
        began_s = time.monotonic()
        with warnings.catch_warnings():
            # About float64, which JAX does not have, and about types within environments, which work today.
            warnings.filterwarnings("ignore", "Explicitly requested dtype|scatter inputs have incompatible types")
            self._reset, self._step = jax.jit(self._reset_all), jax.jit(self._step_all, donate_argnums=1)
            _, state = self._reset(self._key)
            actions = np.zeros((num_envs, *(self.action_space.shape or ())), self.action_space.dtype)
            jax.block_until_ready(self._step(self._key, state, _array(torch.from_numpy(actions))))
        _, self._state = self._reset(self._key)
        if (seconds := time.monotonic() - began_s) > TOLD_FROM_S:
            Console().line(f"{name}: {num_envs} copies were compiled in {seconds:.0f} s.")

    def reset(self, seed: int | None) -> Any:
        """Begins every episode; without a seed, with other random numbers than before."""
        key = self._next_key() if seed is None else jax.random.key(seed)
        self._key, key = jax.random.split(key)
        observations, self._state = self._reset(key)
        return _tensors(observations)

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """One step of all copies; those whose episode ends begin anew."""
        results, self._state = self._step(self._next_key(), self._state, _array(actions))
        seen, final, rewards, terminated, truncated, metrics = _tensors(results)
        return seen, rewards, terminated, truncated, {"final_observations": final, "metrics": metrics}

    def save_state(self) -> Mapping[str, Tensor]:
        """The arrays of the state and the key of the random numbers, copied."""
        leaves = jax.tree.leaves((self._key, self._state))
        return {str(n): torch.from_numpy(np.array(_plain(leaf))) for n, leaf in enumerate(leaves)}

    def restore_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from there.

        Raises:
            EnvError: the state has arrays of other shapes or types, such as that of another version.
        """
        leaves, structure = jax.tree.flatten((self._key, self._state))
        arrays = [state[str(n)].numpy() for n in range(len(state))]
        if [(one.shape, one.dtype) for one in arrays] != [(_plain(one).shape, _plain(one).dtype) for one in leaves]:
            raise EnvError("The saved state has other arrays than the simulator.")
        told = [_like(jnp.array(array), leaf) for array, leaf in zip(arrays, leaves, strict=True)]
        self._key, self._state = jax.tree.unflatten(structure, told)

    def _next_key(self) -> Any:
        self._key, key = jax.random.split(self._key)
        return key

    def _reset_all(self, key: Any) -> tuple[Any, Any]:
        first: tuple[Any, Any] = jax.vmap(self._functions.reset)(jax.random.split(key, self.num_envs))
        return first

    def _step_all(self, key: Any, states: Any, actions: Any) -> tuple[Any, Any]:
        functions, (step_key, reset_key) = self._functions, jax.random.split(key)
        keys = jax.random.split(step_key, self.num_envs)
        final, after, rewards, terminated, truncated, metrics = jax.vmap(functions.step)(keys, states, actions)
        over = terminated | truncated

        def begun() -> tuple[Any, Any]:
            keys = jax.random.split(reset_key, self.num_envs)
            first = jax.vmap(functions.again)(keys, after)
            both: tuple[Any, Any] = jax.tree.map(lambda new, old: _where(over, new, old), first, (final, after))
            return both

        seen, states = jax.lax.cond(over.any(), begun, lambda: (final, after))
        return (seen, final, rewards.astype(jnp.float32), terminated, truncated, metrics), states


def _plain(leaf: Any) -> Any:
    """An array of numbers; a key of random numbers is one inside."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _like(array: Any, leaf: Any) -> Any:
    """The inverse of `_plain`, for an array of the same kind as `leaf`."""
    return jax.random.wrap_key_data(array) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else array


def _where(over: Any, new: Any, old: Any) -> Any:
    """Rows of `new` where an episode is over."""
    if jnp.issubdtype(new.dtype, jax.dtypes.prng_key):
        return jax.vmap(lambda is_over, a, b: jax.lax.select(is_over, a, b))(over, new, old)
    return jnp.where(over.reshape(len(over), *[1] * (new.ndim - 1)), new, old)


def _array(actions: Tensor) -> Any:
    """A tensor as an array with the same memory."""
    return jnp.from_dlpack(actions.contiguous())


def _tensors(arrays: Any) -> Any:
    """A nest of arrays as one of tensors with the same memory."""
    return jax.tree.map(from_dlpack, arrays)
