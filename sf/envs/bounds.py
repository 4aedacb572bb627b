"""Observations outside the bounds of their space: told at the first look, and neither refused nor clipped.

Widely used environments leave their bounds, as LunarLander does at high speed, and no part of `sf` computes
with them. But where the bounds are meant, a number far outside is an error that is hard to find later.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sf.envs.leaves import leaf_value
from sf.shared.arena import Array
from sf.spaces import ACTION_MASK, LeafSpec
from sf.spaces.from_gymnasium import observation_leaves


class Bounds:
    """Remembers of each leaf the number that was farthest outside."""

    def __init__(self, space: Any) -> None:
        self._limited = [
            (leaf, part.dtype, low, high)
            for leaf in observation_leaves(space).values()
            if leaf.name != ACTION_MASK and (part := _part(space, leaf)) is not None
            for low, high in [_limits(part)]
            if _leave_something_out(part.dtype, low, high)
        ]
        self._farthest: dict[str, tuple[float, str]] = {}

    def look(self, observation: Any) -> None:
        """At a whole observation, which fits its space otherwise."""
        for leaf, dtype, low, high in self._limited:
            # In the type of the space, because 0.1 of float64 is less than the 0.1 of float32.
            seen = np.asarray(leaf_value(observation, leaf)).astype(dtype).astype(np.float64)
            outside = np.maximum(low - seen, seen - high)
            farthest = float(outside.max())
            if farthest > self._farthest.get(leaf.name, (0.0, ""))[0]:
                place = np.unravel_index(outside.argmax(), outside.shape)
                text = f"{seen[place]:g} where its space promises {low[place]:g} to {high[place]:g}"
                self._farthest[leaf.name] = farthest, text

    def notes(self, env_id: str) -> list[str]:
        """One sentence for each leaf that was outside."""
        return [
            f"Warning: {env_id} returned an observation {name!r} with {text}. It is taken as it is; correct the "
            "bounds, or clip it in the environment."
            for name, (_, text) in self._farthest.items()
        ]


def _part(space: Any, leaf: LeafSpec) -> Any:
    """The part of a space that belongs to a leaf, None for categories."""
    for key in leaf.path:
        space = space.spaces[key]
    return None if leaf.categories else space


def _limits(part: Any) -> tuple[Array, Array]:
    """Lowest and highest values of a Box or a MultiBinary, of its shape."""
    low, high = getattr(part, "low", np.zeros(part.shape)), getattr(part, "high", np.ones(part.shape))
    return np.array(low, np.float64), np.array(high, np.float64)


def _leave_something_out(dtype: Any, low: Array, high: Array) -> bool:
    """Whether a number of this type can be outside at all; those of most images cannot."""
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    lowest, highest = (limits.min, limits.max) if limits else (-np.inf, np.inf)
    return bool((low > lowest).any() or (high < highest).any())
