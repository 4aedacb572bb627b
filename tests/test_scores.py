"""What environments say of their episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sf.errors import EnvError
from sf.rollout.env_batch import Ended
from sf.rollout.scores import Scores


class Unspeakable:
    """Neither a number nor shown."""

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __str__(self) -> str:
        raise RuntimeError("not shown")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.5, 1.5), (np.float32(1.5), 1.5), (np.array([1.5]), 1.5), ("1.5", 1.5), (True, 1.0), (np.int64(1), 1.0)],
)
def test_fault_b14_scores_in_info_that_convert_are_taken(value: Any, expected: float) -> None:
    scores = Scores(1)
    score = scores.end(Ended(0, True, False, {"episode": {"r": value, "l": 7}, "true_objective": value}))
    assert score == (expected, 7, expected)


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({"true_objective": None}, "a NoneType as true_objective"),
        ({"true_objective": np.zeros(2)}, "a ndarray as true_objective"),
        ({"true_objective": "far" * 1000}, "a str as true_objective"),
        ({"true_objective": Unspeakable()}, "a Unspeakable as true_objective"),
        ({"episode": {"r": {}, "l": 1}}, "a dict as r"),
        ({"episode": {"r": 1.0, "l": np.inf}}, "a float as l"),
        ({"episode": {"r": 3j, "l": 1}}, "a complex as r"),
    ],
)
def test_fault_b14_scores_in_info_that_are_no_numbers_are_refused(info: dict[str, Any], told: str) -> None:
    with pytest.raises(EnvError) as caught:
        Scores(1).end(Ended(0, True, False, info))
    assert f"has {told}, expected a number" in str(caught.value)
    assert len(str(caught.value)) < 250
