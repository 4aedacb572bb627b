"""The spaces of one agent as plans see them, which is how slots store observations and actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from sf.errors import UsageError
from sf.spaces import EnvInfo


def observation_leaf(info: EnvInfo) -> str:
    """The name of the only observation.

    Raises:
        UsageError: there are several.
    """
    if len(info.observations) != 1:
        raise UsageError(
            f"{info.env_id} observes {', '.join(info.observations)}. Plans take one array: wrap the environment in "
            "gymnasium.wrappers.FlattenObservation."
        )
    return next(iter(info.observations))


def observation_space(info: EnvInfo) -> gym.Space[Any]:
    """A Discrete space where the observation is one category, else a Box.

    Raises:
        UsageError: there are several observations, or several categories.
    """
    leaf = info.observations[observation_leaf(info)]
    if len(leaf.categories) == 1:
        return gym.spaces.Discrete(leaf.categories[0], start=leaf.starts[0])
    if leaf.categories:
        raise UsageError(f"{info.env_id} observes {leaf}. Plans take one category, or an array of numbers.")
    dtype = np.dtype(leaf.dtype)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return gym.spaces.Box(low, high, leaf.shape, dtype.type)


def action_space(info: EnvInfo) -> gym.Space[Any]:
    """A Discrete space, a MultiDiscrete one, or a Box.

    Raises:
        UsageError: choices beside numbers.
    """
    columns = info.action.columns
    if info.action.is_scalar:
        return gym.spaces.Discrete(columns[0].num_choices)
    if all(column.num_choices for column in columns):
        return gym.spaces.MultiDiscrete([column.num_choices for column in columns])
    if any(column.num_choices for column in columns):
        raise UsageError(f"{info.env_id} takes {info.action}. Plans take choices or numbers, not both.")
    low, high = (np.array([getattr(column, bound) for column in columns], np.float32) for bound in ("low", "high"))
    return gym.spaces.Box(low, high, dtype=np.float32)
