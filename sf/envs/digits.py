"""Observations that are so far from zero that float32, in which networks compute, cannot tell them apart.

Seconds since 1970 as float32 go in steps of 128. Types that hold more digits keep them until the running mean is
subtracted, see `sf.nets.normalizer`; an environment that returns float32 has lost them before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sf.envs.leaves import leaf_value
from sf.shared.arena import Array
from sf.spaces import ACTION_MASK, EnvInfo

FAR = 2.0**16
"""Numbers below this are told apart to 1/128, and a few of them may show rounding alone."""
NO_INTEGERS = 2.0**24
"""From here on float32 does not have every integer."""
COARSE = 0.1
"""Steps of float32 as a share of the range that was seen."""


class Digits:
    """Remembers the least and the greatest value of every number of an observation."""

    def __init__(self, info: EnvInfo) -> None:
        self._leaves = {
            name: leaf
            for name, leaf in info.observations.items()
            if name != ACTION_MASK and not leaf.categories and (leaf.is_wide or leaf.dtype == "float32")
        }
        self._least: dict[str, Array] = {}
        self._greatest: dict[str, Array] = {}

    def look(self, observation: Any) -> None:
        """At a whole observation, which fits its space."""
        for name, leaf in self._leaves.items():
            seen = np.asarray(leaf_value(observation, leaf), np.float64)
            self._least[name] = np.minimum(self._least.get(name, seen), seen)
            self._greatest[name] = np.maximum(self._greatest.get(name, seen), seen)

    def coarse(self) -> dict[str, str]:
        """Leaf to a part of a sentence about a number in it for which the steps of float32 are too large."""
        found = {}
        for name, least in self._least.items():
            spread, size = self._greatest[name] - least, np.maximum(np.abs(self._greatest[name]), np.abs(least))
            steps = np.spacing(size.astype(np.float32)).astype(np.float64)
            is_coarse = (steps > COARSE * spread) & (size >= np.where(spread > 0, FAR, NO_INTEGERS))
            if is_coarse.any():
                place = np.unravel_index(is_coarse.argmax(), is_coarse.shape)
                found[name] = f"{size[place]:.6g}, around which float32 goes in steps of {steps[place]:g}"
        return found
