"""Looks at observations while a run goes on: entries that no leaf asks for, categories and masks out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sf.envs.observations import EntryCheck, RangeCheck
from sf.errors import EnvError
from sf.spaces import ACTION_MASK, EnvInfo
from sf.spaces.from_gymnasium import action_spec, observation_leaves

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
SEEN = np.zeros(2, np.float32)


def info_of(observation_space: Any, action_space: Any = None) -> EnvInfo:
    action = action_spec(action_space or spaces.Discrete(2))
    return EnvInfo("Toy-v0", 1, observation_leaves(observation_space), action)


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.Dict({"a": BOX, "b": BOX}), {"a": SEEN, "b": SEEN}, {"a": SEEN, "b": SEEN, "c": SEEN}),
        (spaces.Tuple((BOX, BOX)), (SEEN, SEEN), (SEEN, SEEN, SEEN)),
        (
            spaces.Dict({"a": spaces.Dict({"x": BOX})}),
            {"a": {"x": SEEN}},
            {"a": {"x": SEEN, "y": SEEN}},
        ),
    ],
)
def test_entries_that_the_space_does_not_have_are_refused(space: Any, good: Any, bad: Any) -> None:
    check = EntryCheck(info_of(space))
    check(good)
    with pytest.raises(EnvError):
        check(bad)


@pytest.mark.parametrize(("values", "row"), [([0, 2], None), ([0, 3], 1), ([-1, 0], 0), ([2, 2], None)])
def test_first_row_with_a_category_out_of_range(values: list[int], row: int | None) -> None:
    info = info_of(spaces.Discrete(3))
    ((name, leaf),) = info.observations.items()
    observations: dict[str, Any] = {name: np.array(values, leaf.dtype).reshape(len(values), *leaf.shape)}
    bad = RangeCheck(info).bad_row(observations)
    assert (None if bad is None else bad.row) == row


@pytest.mark.parametrize(("mask", "row"), [([[1, 0], [0, 1]], None), ([[1, 0], [0, 0]], 1), ([[0, 0], [1, 1]], 0)])
def test_first_row_with_a_mask_that_allows_nothing(mask: Any, row: int | None) -> None:
    space = spaces.Dict({"obs": BOX, ACTION_MASK: spaces.MultiBinary(2)})
    check = RangeCheck(info_of(space))
    assert check.is_needed
    observations: dict[str, Any] = {"obs": np.zeros((2, 2), np.float32), ACTION_MASK: np.array(mask, np.int8)}
    bad = check.bad_row(observations)
    assert (None if bad is None else bad.row) == row
