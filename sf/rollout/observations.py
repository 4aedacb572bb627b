"""What environments return, checked and copied into shared memory row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from sf.arena import Array
from sf.envs.contract import check_mask, leaf_array, leaf_value
from sf.spaces import ACTION_MASK, EnvInfo


class ObservationWriter:
    """Copies one observation into its row after checking every leaf, so that nothing is broadcast or cast silently."""

    def __init__(self, info: EnvInfo):
        self.action = info.action
        self.leaves = [
            (name, leaf, np.dtype(leaf.dtype), f"it returned an observation {name!r}")
            for name, leaf in info.observations.items()
        ]
        (_, leaf, *_), *others = self.leaves
        is_vector = not others and not leaf.path and not leaf.categories and len(leaf.shape) == 1
        self.vector_size = leaf.shape[0] if is_vector else 0
        """Length of an observation that is one array of rank 1; 0 for all others."""

    def __call__(self, out: dict[str, Array], row: int, observation: Any) -> None:
        """Writes one observation into `out[name][row]`.

        Raises:
            EnvError: see `leaf_array`, or an action mask forbids everything.
        """
        for name, leaf, dtype, what in self.leaves:
            value = leaf_value(observation, leaf) if leaf.path else observation
            if (
                value.__class__ is not np.ndarray
                or value.dtype is not dtype
                or value.shape != leaf.shape
                or leaf.categories
            ):
                value = leaf_array(value, leaf, what)
            out[name][row] = value
            if name == ACTION_MASK:
                check_mask(value, self.action)
