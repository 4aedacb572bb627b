"""The memory that the workers of a vector environment share, and nests of copies of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sf.shared.arena import Field
from sf.spaces import EnvInfo
from sf.tools.vector.worker import (
    FINAL,
    IDLE,
    OBSERVED,
)


def fields_of(info: EnvInfo, action_space: gymnasium.Space[Any], num_envs: int, num_workers: int) -> dict[str, Field]:
    rows = {
        f"{kind}{name}": Field((num_envs, *leaf.shape), leaf.dtype)
        for kind in (OBSERVED, FINAL)
        for name, leaf in info.observations.items()
    }
    shape, dtype = action_space.shape, action_space.dtype
    assert shape is not None
    return rows | {
        "actions": Field(shape, np.dtype(dtype).name),
        "rewards": Field((num_envs,), "float64"),
        "terminated": Field((num_envs,), "bool"),
        "truncated": Field((num_envs,), "bool"),
        "orders": Field((num_workers,), "int64", IDLE),
        "told": Field((num_workers,), "int64"),
        "progress": Field((num_workers,), "int64"),
    }


def nest_of(space: gymnasium.Space[Any], info: EnvInfo, array_of: Callable[[str], Any]) -> Any:
    """Copies of the arrays of the leaves, of the types that a space has, in the nest that it describes."""
    names: dict[tuple[Any, ...], str] = {leaf.path: name for name, leaf in info.observations.items()}

    def fill(part: gymnasium.Space[Any], path: tuple[Any, ...]) -> Any:
        if isinstance(part, spaces.Dict):
            return {key: fill(one, (*path, key)) for key, one in part.spaces.items()}
        if isinstance(part, spaces.Tuple):
            return tuple(fill(one, (*path, index)) for index, one in enumerate(part.spaces))
        return array_of(names[path]).astype(part.dtype)

    return fill(space, ())
