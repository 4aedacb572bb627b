"""Spaces: a few by name, and any for hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (3,))
BOX_ACTION = spaces.Box(np.array([-0.1, -2.0], np.float32), np.array([0.1, 1.0], np.float32))

SPACES: st.SearchStrategy[Any] = st.deferred(
    lambda: st.one_of(
        st.builds(spaces.Discrete, st.integers(1, 9), start=st.integers(-5, 5)),
        st.lists(st.integers(1, 5), min_size=1, max_size=3).map(spaces.MultiDiscrete),
        st.integers(1, 4).map(spaces.MultiBinary),
        boxes(),
        st.lists(SPACES, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), SPACES, min_size=1).map(spaces.Dict),
    )
)


def boxes() -> st.SearchStrategy[spaces.Box]:
    def make(low: float, high: float, shape: list[int], dtype: type) -> spaces.Box:
        return spaces.Box(low, high, tuple(shape), dtype)

    return st.builds(
        make,
        st.sampled_from([-np.inf, -2.0, 0.0]),
        st.sampled_from([np.inf, 0.5, 3.0]),
        st.lists(st.integers(1, 3), max_size=2),
        st.sampled_from([np.float32, np.float64]),
    )
