"""From stored actions to what environments execute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sf.shared.arena import Array
from sf.spaces import ActionBounds
from sf.spaces.scaling import scale_of

Converter = Callable[[Array], Sequence[Any]]
"""From [rows, columns] to one action per row."""


def action_converter(space: Any, bounds: ActionBounds) -> Converter:
    """A function from stored actions, [rows] or [rows, D], to what the environments execute, one per row.

    The stored action stays as it was drawn, because its log-probability belongs to it. Numbers of a Box are scaled from
    -1 to 1 to its bounds and clipped, or only clipped, or squashed by tanh.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        # Numpy scalars: `Discrete.contains` accepts them faster than Python's integers.
        start, dtype = int(space.start), space.dtype
        if dtype != np.int64:
            return lambda actions: list((actions + start).astype(dtype))
        return list if start == 0 else lambda actions: list(actions + start)
    convert = vector_action_converter(space, bounds)
    return lambda actions: _rows(space, convert(actions))


def vector_action_converter(space: Any, bounds: ActionBounds) -> Callable[[Array], Any]:
    """Like `action_converter`, to one nest of arrays [rows, ...] for all environments; the space is that of one.

    They share no memory with the stored actions, so that an environment which writes into its actions changes nothing.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        start, dtype = int(space.start), space.dtype
        return lambda actions: (actions + start).astype(dtype, copy=False) if start else actions.astype(dtype)
    return _converter(space, bounds, 0)[0]


def _converter(space: Any, bounds: ActionBounds, first: int) -> tuple[Callable[[Array], Any], int]:
    """The function for the columns of a space that begin at `first`, and the first column after them."""
    from gymnasium import spaces

    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        keys = list(space.spaces) if isinstance(space, spaces.Dict) else None
        parts = []
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            converter, first = _converter(part, bounds, first)
            parts.append(converter)
        if keys is None:
            return lambda actions: tuple(part(actions) for part in parts), first
        return lambda actions: {key: part(actions) for key, part in zip(keys, parts, strict=True)}, first
    if isinstance(space, spaces.Discrete):
        start, choices_dtype = int(space.start), space.dtype
        return lambda actions: (actions[:, first].astype(np.int64) + start).astype(choices_dtype), first + 1
    shape, dtype = tuple(space.shape), space.dtype
    end = first + int(np.prod(shape))
    if isinstance(space, spaces.Box):
        to_bounds = {"scale": _scale, "clip": _clip, "tanh": _squash}[bounds](space)
    else:
        to_bounds = _shift(space.start if isinstance(space, spaces.MultiDiscrete) else 0)
    return lambda actions: to_bounds(actions[:, first:end].reshape(-1, *shape)).astype(dtype, copy=False), end


def _rows(space: Any, arrays: Any) -> Sequence[Any]:
    """One action per row."""
    if isinstance(arrays, tuple):
        return list(zip(*(_rows(*pair) for pair in zip(space.spaces, arrays, strict=True)), strict=True))
    if isinstance(arrays, dict):
        parts = [_rows(space.spaces[key], part) for key, part in arrays.items()]
        return [dict(zip(arrays, row, strict=True)) for row in zip(*parts, strict=True)]
    is_scalar_box = arrays.ndim == 1 and space.shape == () and arrays.dtype.kind == "f"
    return [arrays[row, ...] for row in range(len(arrays))] if is_scalar_box else list(arrays)


def _shift(start: Any) -> Callable[[Array], Array]:
    return lambda choices: choices + start


def _clip(space: Any) -> Callable[[Array], Array]:
    low, high = space.low, space.high
    return lambda numbers: np.clip(numbers, low, high)


def _scale(space: Any) -> Callable[[Array], Array]:
    middle, half = scale_of(space.low, space.high)
    clip = _clip(space)
    if not middle.any() and (half == 1).all():
        return clip
    return lambda numbers: clip(middle + half * numbers)


def _squash(space: Any) -> Callable[[Array], Array]:
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    assert np.isfinite(high - low).all(), f"checked before the run, see sf.config.checks: {space}"
    middle, half = (high + low) / 2, (high - low) / 2
    return lambda numbers: middle + half * np.tanh(numbers)
