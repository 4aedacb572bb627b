"""The leaves of an observation space of Gymnasium, and the columns of an action space."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from sf.errors import EnvError
from sf.spaces import WHITE, ActionColumn, ActionPart, ActionSpec, LeafSpec

if TYPE_CHECKING:
    import gymnasium

# The type in which observations of each type are stored, one that torch can compute with. None loses digits.
STORED_DTYPES = {
    "float16": "float32",
    "float32": "float32",
    "float64": "float64",
    "bool": "uint8",
    "uint8": "uint8",
    "uint16": "int32",
    "uint32": "int64",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
}


def observation_leaves(space: gymnasium.Space[Any]) -> dict[str, LeafSpec]:
    """The leaves of a space: Box, Discrete, MultiDiscrete, MultiBinary, and nested Dicts and Tuples of these.

    Raises:
        EnvError: a part of the space is none of these, is empty, or has no type that can be stored.
    """
    leaves: dict[str, LeafSpec] = {}
    for leaf in _leaves_of(space, ()):
        if leaf.name in leaves:
            raise EnvError(f"Two entries of the observation space have the path {leaf.name!r}. Rename one of them.")
        leaves[leaf.name] = leaf
    return leaves


def _leaves_of(space: gymnasium.Space[Any], path: tuple[str | int, ...]) -> Iterator[LeafSpec]:
    from gymnasium import spaces

    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield _leaf(space, path)
        return
    parts: dict[Any, Any] = dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space.spaces))
    if not parts:
        kind = type(space).__name__
        raise EnvError(f"{_place(path)} is an empty {kind}. It needs at least one entry that holds numbers.")
    for key, part in parts.items():
        yield from _leaves_of(part, (*path, key))


def _place(path: tuple[str | int, ...]) -> str:
    return f"Entry {'/'.join(str(key) for key in path)!r} of the observation space" if path else "The observation space"


def _leaf(space: gymnasium.Space[Any], path: tuple[str | int, ...]) -> LeafSpec:
    from gymnasium import spaces

    what = _place(path)
    if isinstance(space, spaces.Discrete):
        return LeafSpec((), "int64", (int(space.n),), (int(space.start),), path)
    if isinstance(space, spaces.MultiDiscrete):
        categories = tuple(int(n) for n in np.ravel(space.nvec))
        starts = tuple(int(n) for n in np.ravel(np.broadcast_to(space.start, space.nvec.shape)))
        return LeafSpec(_lengths(space.shape, what), "int64", categories, starts, path)
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)):
        advice = (
            "Flatten it with gymnasium.wrappers.FlattenObservation"
            if isinstance(space, spaces.Text)
            else "Bring it to a fixed size, such as a padded array beside a mask, with "
            "gymnasium.wrappers.TransformObservation"
        )
        raise EnvError(
            f"{what} is {space}, but observations are Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of "
            f"these. {advice}."
        )
    dtype = STORED_DTYPES.get(np.dtype(space.dtype).name)
    if dtype is None:
        raise EnvError(
            f"{what} has dtype {space.dtype}, but observations are one of {', '.join(STORED_DTYPES)}. "
            "Convert it with gymnasium.wrappers.TransformObservation."
        )
    return LeafSpec(_lengths(space.shape, what), dtype, path=path, brightest=_brightest(space))


def _brightest(space: gymnasium.Space[Any]) -> int:
    """The upper bound of a picture of uint8 or of booleans; `WHITE` for everything else."""
    dtype = np.dtype(space.dtype)
    if dtype not in (np.uint8, np.bool_) or len(space.shape or ()) not in (2, 3):
        return WHITE
    return max(1, int(getattr(space, "high", np.ones(1)).max()))


def _lengths(shape: tuple[int, ...], what: str) -> tuple[int, ...]:
    if 0 in shape:
        raise EnvError(f"{what} has shape {shape}, which holds no numbers. Every observation needs at least one.")
    return tuple(int(n) for n in shape)


def action_spec(space: gymnasium.Space[Any]) -> ActionSpec:
    """The columns of an action space: Discrete, MultiDiscrete, MultiBinary, Box of floats, Dict and Tuple of these.

    Raises:
        EnvError: a part of the space is none of these.
    """
    from gymnasium import spaces

    parts = list(_action_parts(space, ()))
    columns = tuple(column for _, own in parts for column in own)
    if not columns:
        raise EnvError(f"The action space is {space}, which holds no action. It needs at least one.")
    return ActionSpec(columns, isinstance(space, spaces.Discrete), tuple(part for part, _ in parts))


def _action_parts(
    space: gymnasium.Space[Any], path: tuple[str | int, ...]
) -> Iterator[tuple[ActionPart, list[ActionColumn]]]:
    from gymnasium import spaces

    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        inner: dict[Any, Any] = dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space.spaces))
        for key, part in inner.items():
            yield from _action_parts(part, (*path, key))
        return
    shape = tuple(int(n) for n in getattr(space, "shape", None) or ())
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        bounds = zip(np.ravel(space.low), np.ravel(space.high), strict=True)
        columns = [ActionColumn(low=float(low), high=float(high)) for low, high in bounds]
        yield ActionPart(path, shape, np.dtype(space.dtype).name), columns
    else:
        yield ActionPart(path, shape, "int64"), list(_choices(space))


def _choices(space: gymnasium.Space[Any]) -> Iterator[ActionColumn]:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        yield ActionColumn(int(space.n), int(space.start))
    elif isinstance(space, spaces.MultiDiscrete):
        starts = np.broadcast_to(space.start, space.nvec.shape)
        for n, start in zip(np.ravel(space.nvec), np.ravel(starts), strict=True):
            yield ActionColumn(int(n), int(start))
    elif isinstance(space, spaces.MultiBinary):
        yield from [ActionColumn(2)] * prod(int(n) for n in np.atleast_1d(space.n))
    else:
        raise EnvError(
            f"The action space is or contains {space}, but actions are Discrete, MultiDiscrete, MultiBinary, Box of "
            "floats, or Dict and Tuple of these. Convert it with gymnasium.wrappers.TransformAction."
        )
