"""Agents with spaces of their own as rows of one kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from sf_envs.padding import Padding

from sf.errors import EnvError

SMALL, LARGE = spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-3.0, 0.5, (3,))
NAMES = "red", "blue"


def test_what_is_alike_stays_as_it_is() -> None:
    nested = spaces.Dict({"a": SMALL, "b": spaces.Discrete(3)})
    padding = Padding(NAMES, [nested, nested], [SMALL, SMALL])
    assert padding.observation_space is nested
    assert padding.action_space is SMALL
    seen, action = {"a": np.ones(2), "b": 1}, np.ones(2)
    assert padding.observe(1, seen, {}) is seen
    assert padding.act(1, action) is action
    assert padding.observe(0, None, {}) is None


def test_shorter_vectors_get_zeros_and_fewer_choices_a_mask() -> None:
    padding = Padding(NAMES, [SMALL, LARGE], [spaces.Discrete(4), spaces.Discrete(2)])
    vector = padding.observation_space["obs"]
    np.testing.assert_array_equal(vector.low, [-3, -3, -3])
    np.testing.assert_array_equal(vector.high, [1, 1, 0.5])
    assert padding.action_space == spaces.Discrete(4)
    red, blue = (
        padding.observe(0, np.array([0.5, -0.5], np.float32), {}),
        padding.observe(1, np.ones(3, np.float32), {}),
    )
    np.testing.assert_array_equal(red["obs"], [0.5, -0.5, 0.0])
    np.testing.assert_array_equal(blue["obs"], [1, 1, 1])
    assert red["action_mask"].tolist() == [1, 1, 1, 1]
    assert blue["action_mask"].tolist() == [1, 1, 0, 0]
    assert red in padding.observation_space
    assert padding.act(0, 3) == 3


def test_masks_of_the_environment_count_among_the_choices_of_an_agent() -> None:
    padding = Padding(NAMES, [SMALL, SMALL], [spaces.Discrete(4), spaces.Discrete(2)])
    seen = np.zeros(2, np.float32)
    assert padding.observe(1, seen, {"action_mask": [0, 1]})["action_mask"].tolist() == [0, 1, 0, 0]
    assert padding.observe(0, seen, {"action_mask": [0, 1, 1, 0]})["action_mask"].tolist() == [0, 1, 1, 0]
    with pytest.raises(EnvError, match=r"of blue has the shape \[4\], expected one number for each of its 2 choices"):
        padding.observe(1, seen, {"action_mask": [0, 1, 1, 1]})


@pytest.mark.parametrize("wrong", [np.ones(1, np.float32), np.ones(3, np.float32), np.ones(2), "text"])
def test_what_is_no_observation_of_the_agent_is_left_to_the_check(wrong: Any) -> None:
    padding = Padding(NAMES, [SMALL, LARGE], [SMALL, SMALL])
    assert padding.observe(0, wrong, {}) is wrong


def test_numbers_that_an_action_has_too_many_are_left_out() -> None:
    wide = spaces.Box(-1.0, 1.0, (3,))
    padding = Padding(NAMES, [SMALL, SMALL], [SMALL, wide])
    assert padding.action_space == wide
    assert padding.observation_space is SMALL
    assert padding.act(0, np.array([1, 2, 3])).tolist() == [1, 2]
    assert padding.act(1, np.array([1, 2, 3])).tolist() == [1, 2, 3]


WRONG: dict[str, tuple[list[Any], list[Any], str]] = {
    "shapes": ([SMALL, spaces.Box(0, 1, (2, 2))], [SMALL, SMALL], "red and blue have different observation spaces"),
    "types": ([SMALL, spaces.Box(0, 9, (3,), np.int64)], [SMALL, SMALL], "different observation spaces"),
    "bounds": ([SMALL, SMALL], [SMALL, LARGE], "different action spaces"),
    "kinds": ([SMALL, SMALL], [SMALL, spaces.Discrete(2)], "different action spaces"),
    "starts": ([SMALL, SMALL], [spaces.Discrete(2), spaces.Discrete(3, start=1)], "different action spaces"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_filled_up_is_refused(name: str) -> None:
    observations, actions, message = WRONG[name]
    with pytest.raises(
        EnvError, match=f"{message}, .* Vectors of different lengths .* make these alike with a wrapper"
    ):
        Padding(NAMES, observations, actions)
