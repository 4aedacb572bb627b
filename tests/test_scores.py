"""What environments say of their episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sf.errors import EnvError
from sf.rollout.env_batch import Ended
from sf.rollout.scores import Scores


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.5, 1.5), (np.float32(1.5), 1.5), (np.array([1.5]), 1.5), ("1.5", 1.5), (True, 1.0), (np.int64(1), 1.0)],
)
def test_fault_b14_scores_in_info_that_convert_are_taken(value: Any, expected: float) -> None:
    scores = Scores(1, from_info=True)
    score = scores.end(Ended(0, True, False, {"episode": {"r": value, "l": 7}, "true_objective": value}))
    assert score == (expected, 7, expected)


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({"true_objective": None}, "true_objective=None"),
        ({"true_objective": np.zeros(2)}, "true_objective=[0. 0.]"),
        ({"true_objective": "far" * 1000}, "true_objective=farfar"),
        ({"episode": {"r": 1.0}}, "l=None"),
        ({"episode": {"r": {}, "l": 1}}, "r={}"),
        ({"episode": {"r": 1.0, "l": np.inf}}, "l=inf"),
        ({"episode": 3j}, "r=3j"),
    ],
)
def test_fault_b14_scores_in_info_that_are_no_numbers_are_refused(info: dict[str, Any], told: str) -> None:
    with pytest.raises(EnvError) as caught:
        Scores(1, from_info="episode" in info).end(Ended(0, True, False, info))
    assert f"says {told}" in str(caught.value)
    assert len(str(caught.value)) < 250
