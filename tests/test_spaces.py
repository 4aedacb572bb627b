"""Spaces as flat leaves: what is supported, what is refused, and how the facts travel."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sf.errors import EnvError
from sf.spaces import ActionSpec, EnvInfo, LeafSpec, action_spec, observation_leaves


@pytest.mark.parametrize(
    ("space", "leaves"),
    [
        (spaces.Box(-1, 1, (4,), np.float32), {"obs": LeafSpec((4,), "float32")}),
        (spaces.Box(-1, 1, (), np.float64), {"obs": LeafSpec((), "float32")}),
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), {"obs": LeafSpec((84, 84, 3), "uint8")}),
        (spaces.Box(0, 1, (2,), np.uint16), {"obs": LeafSpec((2,), "int32")}),
        (spaces.Box(-5, 5, (2, 2), np.int64), {"obs": LeafSpec((2, 2), "int64")}),
        (spaces.Discrete(5), {"obs": LeafSpec((), "int64", num_categories=5)}),
        (spaces.Discrete(5, start=-2), {"obs": LeafSpec((), "int64", num_categories=5, start=-2)}),
        (
            spaces.Dict({"image": spaces.Box(0, 255, (8, 8), np.uint8), "task": spaces.Discrete(2)}),
            {"image": LeafSpec((8, 8), "uint8"), "task": LeafSpec((), "int64", num_categories=2)},
        ),
    ],
)
def test_observation_space_becomes_leaves(space: spaces.Space[Any], leaves: dict[str, LeafSpec]) -> None:
    assert observation_leaves(space) == leaves


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.MultiDiscrete([2, 3]), r"The observation space is MultiDiscrete\(\[2 3\]\), but observations are Box"),
        (spaces.Tuple([spaces.Discrete(2)]), r"The observation space is Tuple\(Discrete\(2\)\), but .*FlattenObser"),
        (spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}), r"Entry 'a' is Dict\('b': Discrete\(2\)\), but"),
        (spaces.Dict({}), r"The observation space is an empty Dict\. It needs at least one"),
        (spaces.Box(0, 1, (3, 0), np.float32), r"has shape \(3, 0\), which holds no numbers"),
        (spaces.Box(0, 1, (3,), np.uint64), r"has dtype uint64, but observations are one of float16, float32"),
    ],
)
def test_b17_observation_space_is_refused_by_name(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        observation_leaves(space)


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Discrete(6), ActionSpec("discrete", (), "int64", num_actions=6)),
        (spaces.Discrete(1), ActionSpec("discrete", (), "int64", num_actions=1)),
        (spaces.Discrete(3, start=-1), ActionSpec("discrete", (), "int64", num_actions=3, start=-1)),
        (spaces.Box(-2, 2, (1,), np.float32), ActionSpec("box", (1,), "float32", low=(-2.0,), high=(2.0,))),
        (
            spaces.Box(-np.inf, np.inf, (2,), np.float64),
            ActionSpec("box", (2,), "float32", low=(-np.inf, -np.inf), high=(np.inf, np.inf)),
        ),
    ],
)
def test_action_space_becomes_a_spec(space: spaces.Space[Any], spec: ActionSpec) -> None:
    assert action_spec(space) == spec


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.MultiBinary(3), r"The action space is MultiBinary\(3\), but actions are Discrete or Box"),
        (spaces.Box(0, 1, (2, 2), np.float32), r"is a Box of shape \(2, 2\) and dtype float32, but a Box of actions"),
        (spaces.Box(0, 1, (), np.float32), r"is a Box of shape \(\) and dtype float32"),
        (spaces.Box(0, 9, (2,), np.int64), r"is a Box of shape \(2,\) and dtype int64"),
    ],
)
def test_b17_action_space_is_refused_by_name(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        action_spec(space)


def test_facts_travel_as_pickle_and_as_strict_json() -> None:
    observations = observation_leaves(spaces.Dict({"a": spaces.Box(-1, 1, (2, 3)), "b": spaces.Discrete(4, start=1)}))
    action = action_spec(spaces.Box(np.array([-np.inf, 0], np.float32), np.array([1, np.inf], np.float32)))
    info = EnvInfo("Toy-v0", 2, observations, action)
    assert pickle.loads(pickle.dumps(info)) == info
    text = json.dumps(info.to_json(), allow_nan=False)
    assert EnvInfo.from_json(json.loads(text)) == info
    assert str(info) == (
        "2 agents, observations {a: float32[2, 3], b: categories 1 to 4}, "
        "actions float32[2] from [-inf, 0.0] to [1.0, inf]"
    )
