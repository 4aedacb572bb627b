"""From stored actions to what environments execute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sf.envs.actions import action_converter, vector_action_converter
from sf.spaces.from_gymnasium import action_spec

INF = np.inf


@pytest.mark.parametrize(
    ("space", "stored", "executed"),
    [
        (spaces.Discrete(3), [0, 2], [0, 2]),
        (spaces.Discrete(3, start=-1), [0, 2], [-1, 1]),
        (spaces.MultiDiscrete([3, 2], start=[5, 0]), [[0, 1], [2, 0]], [[5, 1], [7, 0]]),
        (spaces.MultiDiscrete(np.array([[3, 2], [2, 2]])), [[0, 1, 1, 0]], [[[0, 1], [1, 0]]]),
        (spaces.MultiBinary((2, 2)), [[0, 1, 1, 0]], [[[0, 1], [1, 0]]]),
        (spaces.Box(-1, 1, (2,)), [[0.5, -3.0]], [[0.5, -1.0]]),
        (spaces.Box(-1, 1, (2, 1)), [[0.5, 3.0]], [[[0.5], [1.0]]]),
        (spaces.Box(-INF, 2, ()), [[-1e9], [3.0]], [-1e9, 2.0]),
    ],
)
def test_stored_actions_become_those_of_the_space(space: spaces.Space[Any], stored: Any, executed: Any) -> None:
    actions = action_converter(space, "clip")(np.array(stored, action_spec(space).dtype))
    assert np.array(actions).tolist() == executed
    assert all(space.contains(action) for action in actions)


@pytest.mark.parametrize(
    ("space", "stored", "executed"),
    [
        (spaces.Box(0, 1000, (1,)), [[0.0], [0.5], [-1.0], [1.5]], [[500.0], [750.0], [0.0], [1000.0]]),
        (spaces.Box(-0.001, 0.001, (1,), np.float64), [[0.5], [-2.0]], [[0.0005], [-0.001]]),
        (spaces.Box(-1, 1, (2,)), [[0.3, -3.0]], [[np.float32(0.3), -1.0]]),
        (spaces.Box(np.array([0, -INF, 1], "f4"), np.array([10, INF, INF], "f4")), [[0.5, 7, 0]], [[7.5, 7, 1]]),
        (spaces.Box(-3e38, 3e38, (1,)), [[0.5]], [[0.5]]),  # the bounds of the type, which mean none
        (spaces.Box(2, 2, (1,)), [[0.5]], [[2.0]]),
        (spaces.Discrete(3, start=-1), [0, 2], [-1, 1]),
    ],
)  # fmt: skip
def test_scale_maps_plus_minus_one_to_finite_bounds(space: spaces.Space[Any], stored: Any, executed: Any) -> None:
    actions = action_converter(space, "scale")(np.array(stored, action_spec(space).dtype))
    np.testing.assert_allclose(np.array(actions), executed, rtol=1e-12)
    assert all(space.contains(action) for action in actions)


@pytest.mark.parametrize("start", [0, -1])
@pytest.mark.parametrize("nest", [False, True])
def test_choices_have_the_type_of_their_space(nest: bool, start: int) -> None:
    """Dtype of the space itself as well, for an environment that compares or packs actions."""
    choice = spaces.Discrete(3, start=start, dtype=np.int8)
    space = spaces.Tuple([choice]) if nest else choice
    stored = np.array([[0], [2]] if nest else [0, 2])
    for convert in (action_converter(space, "clip"), lambda rows: vector_action_converter(space, "clip")(rows)):
        actions: Any = convert(stored)
        choices = [np.asarray(part) for part in ([one[0] for one in actions] if nest else actions)]
        assert {part.dtype for part in choices} == {np.dtype(np.int8)}
    assert [int(action[0] if nest else action) for action in action_converter(space, "clip")(stored)] == [
        start,
        2 + start,
    ]


def test_nested_actions() -> None:
    space = spaces.Dict(
        {"move": spaces.Box(-1, 1, (2,)), "do": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}
    )
    stored = np.array([[2, 0, 1, 0.25, 9], [0, 1, 1, -9, 0.5]], np.float32)  # Gymnasium sorts the keys of a Dict
    first, second = action_converter(space, "clip")(stored)
    assert space.contains(first)
    assert space.contains(second)
    assert (first["do"][0], first["do"][1].tolist(), first["move"].tolist()) == (2, [0, 1], [0.25, 1])
    assert (second["do"][0], second["do"][1].tolist(), second["move"].tolist()) == (0, [1, 1], [-1, 0.5])


def test_b9_c27_clipping_leaves_the_stored_action_alone() -> None:
    stored = np.array([[3.0]], np.float32)
    (action,) = action_converter(spaces.Box(-1, 1, (1,)), "clip")(stored)
    assert (action.tolist(), stored.tolist()) == ([1.0], [[3.0]])


def test_tanh_squashes_into_bounds() -> None:
    space = spaces.Box(np.array([-1, 2], np.float32), np.array([1, 6], np.float32))
    stored = np.array([[0, 0], [50, -50], [0.5, 0.5]], np.float32)
    actions = np.array(action_converter(space, "tanh")(stored))
    np.testing.assert_allclose(actions, [[0, 4], [1, 2], [np.tanh(0.5), 4 + 2 * np.tanh(0.5)]], rtol=1e-6)
    assert all(space.contains(action) for action in actions.astype(np.float32))
