"""What environments return, checked and copied into shared memory row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from sf.arena import Array
from sf.envs.contract import check_mask, leaf_array, leaf_value
from sf.errors import EnvError
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


def write_rewards(rewards: Array, received: list[float], env_id: str) -> None:
    """Stores one number per row, [rows] float32; an array that holds one number is one.

    Raises:
        EnvError: something else was received.
    """
    try:
        array = np.asarray(received)
    except ValueError:  # arrays among numbers
        array = np.empty(0)
    if array.dtype.kind in "fiub" and array.size == len(rewards):
        rewards[:] = array if array.ndim == 1 else array.reshape(-1)
        return
    for row, reward in enumerate(received):
        number = np.asarray(reward)
        if number.dtype.kind not in "fiub" or number.size != 1:
            kind = type(reward).__name__
            raise EnvError(f"{env_id}, row {row}: step() returned the reward {reward!r} ({kind}), expected a number.")
        rewards[row] = number.item()
