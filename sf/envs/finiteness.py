"""Numbers of an environment that are not finite, and the sentences about them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sf.envs.leaves import leaf_value
from sf.shared.arena import Array
from sf.spaces import EnvInfo

FINITE_OR_DROPPED = "Correct or clip it in the environment, or drop what leads to it with --on_nonfinite=drop."


LARGEST = 1e18
"""From here on a reward or an observation counts as infinite: its square, which statistics add up, is no float32."""


SHOWN = 16
"""Numbers of an array in a message."""


def nonfinite_observation(observation: Any, info: EnvInfo) -> str:
    """The sentence about an observation, which fits otherwise, with NaN or infinity; "" without."""
    for name, leaf in info.observations.items():
        array = np.asarray(leaf_value(observation, leaf))
        if array.dtype.kind == "f" and not (np.abs(array) < np.float64(LARGEST)).all():
            kind = "NaN" if np.isnan(array).any() else "infinity"
            return (
                f"{info.env_id} returned an observation {name!r} that holds {kind}: "
                f"{with_place(array)}{counts_as_infinite(array)}. Observations must be finite."
            )
    return ""


def with_place(array: Array) -> str:
    """An array with numbers that are not finite, as text; of a long one also where they are."""
    text = np.array2string(array, threshold=SHOWN)
    places = np.argwhere(~(np.abs(array) < np.float64(LARGEST)))
    if array.size <= SHOWN or not len(places):
        return text
    first = ", ".join(map(str, places[0].tolist()))
    return f"{text} ({array[tuple(places[0])]} at [{first}]; {len(places)} of {array.size} numbers)"


def nonfinite_reward(reward: float, info: EnvInfo) -> str:
    """The same about a reward."""
    if abs(reward) < LARGEST:
        return ""
    return (
        f"{info.env_id} returned the reward {reward!r}{counts_as_infinite(reward)} from step, expected a finite number."
    )


def counts_as_infinite(values: Array | float) -> str:
    """A note on numbers that are finite but count as infinite."""
    return f" (anything from {LARGEST:g} counts as infinite)" if np.isfinite(values).all() else ""
