"""Spaces as flat leaves: what is supported, what is refused, and how the facts travel."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sf.config import Config, ModelConfig, RunConfig, check
from sf.errors import EnvError
from sf.run.sizes import resolve
from sf.spaces import ActionColumn, ActionSpec, EnvInfo, LeafSpec
from sf.spaces.from_gymnasium import action_spec, observation_leaves
from sf.spaces.images import image_layout


@pytest.mark.parametrize(
    ("space", "leaves"),
    [
        (spaces.Box(-1, 1, (4,), np.float32), {"obs": LeafSpec((4,), "float32")}),
        (spaces.Box(-1, 1, (), np.float64), {"obs": LeafSpec((), "float64")}),
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), {"obs": LeafSpec((84, 84, 3), "uint8")}),
        (spaces.Box(0, 1, (2,), np.uint16), {"obs": LeafSpec((2,), "int32")}),
        (spaces.Box(-5, 5, (2, 2), np.int64), {"obs": LeafSpec((2, 2), "int64")}),
        (spaces.Discrete(5), {"obs": LeafSpec((), "int64", (5,), (0,))}),
        (spaces.Discrete(5, start=-2), {"obs": LeafSpec((), "int64", (5,), (-2,))}),
        (spaces.MultiBinary((2, 3)), {"obs": LeafSpec((2, 3), "int8")}),
        (
            spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
            {"obs": LeafSpec((2, 2), "int64", (2, 3, 4, 5), (0, 0, 0, 0))},
        ),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), {"obs": LeafSpec((2,), "int64", (2, 3), (1, -1))}),
        (
            spaces.Dict({"image": spaces.Box(0, 255, (8, 8), np.uint8), "task": spaces.Discrete(2)}),
            {
                "image": LeafSpec((8, 8), "uint8", path=("image",)),
                "task": LeafSpec((), "int64", (2,), (0,), ("task",)),
            },
        ),
        (
            spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.Dict({"b": spaces.Box(0, 1, (3,))})])}),
            {
                "a/0": LeafSpec((), "int64", (2,), (0,), ("a", 0)),
                "a/1/b": LeafSpec((3,), "float32", path=("a", 1, "b")),
            },
        ),
    ],
)
def test_observation_space_becomes_leaves(space: spaces.Space[Any], leaves: dict[str, LeafSpec]) -> None:
    assert observation_leaves(space) == leaves


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(3), r"The observation space is Text\(.*\), but observations are Box, .*FlattenObservation"),
        (spaces.Sequence(spaces.Discrete(3)), r"Sequence\(.*fixed size.*gymnasium\.wrappers\.TransformObservation\.$"),
        (spaces.Dict({"a": spaces.Tuple([spaces.Text(2)])}), r"Entry 'a/0' of the observation space is Text"),
        (spaces.Dict({}), r"The observation space is an empty Dict\. It needs at least one"),
        (spaces.Dict({"a": spaces.Tuple([])}), r"Entry 'a' of the observation space is an empty Tuple"),
        (spaces.Box(0, 1, (3, 0), np.float32), r"has shape \(3, 0\), which holds no numbers"),
        (spaces.Box(0, 1, (3,), np.uint64), r"has dtype uint64, but observations are one of float16, float32"),
        (
            spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}),
            r"Two entries of the observation space have the path 'a/b'\. Rename one",
        ),
    ],
)
def test_fault_b17_observation_space_is_refused_by_name(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        observation_leaves(space)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((84, 84), "HW"),
        ((84, 84, 3), "HWC"),
        ((4, 84, 84), "CHW"),
        ((3, 96, 64), "CHW"),
        ((96, 64, 3), "HWC"),
        ((40, 40, 60), "HWC"),
        ((64, 84, 84), "CHW"),
        ((30, 50, 60), "CHW"),
        ((20, 20, 20), None),
        ((7, 7, 3), None),
        ((84, 20), None),
        ((84,), None),
    ],
)
def test_image_layout(shape: tuple[int, ...], layout: str | None) -> None:
    assert image_layout(LeafSpec(shape, "uint8")) == layout


@pytest.mark.parametrize("shape", [(40, 50, 60), (64, 64, 64), (60, 40, 50), (84, 84, 84)])
def test_three_long_axes_are_no_image(shape: tuple[int, ...]) -> None:
    sentence = (
        r"'obs' has shape .*, which is neither \[height, width, channels\] nor .* Flatten it with .*FlattenObserv"
    )
    with pytest.raises(EnvError, match=sentence):
        EnvInfo("Odd-v0", 1, {"obs": LeafSpec(shape, "float32")}, ActionSpec.discrete(2))


def test_image_with_channels_in_the_middle_is_refused_before_training() -> None:
    sentence = (
        r"'obs' has shape \(84, 3, 84\), an image with its channels in the middle\. "
        r"Move them to the end with .*, so that the shape is \(84, 84, 3\)\.$"
    )
    with pytest.raises(EnvError, match=sentence):
        EnvInfo("Odd-v0", 1, {"obs": LeafSpec((84, 3, 84), "uint8")}, ActionSpec.discrete(2))


def test_what_only_small_convolutions_take_for_an_image_is_refused_before_training() -> None:
    info = EnvInfo("Odd-v0", 1, {"obs": LeafSpec((10, 3, 10), "uint8")}, ActionSpec.discrete(2))
    check(resolve(Config(RunConfig("Odd-v0")), info, cores=1), info)
    small = Config(RunConfig("Odd-v0"), model=ModelConfig(encoder_conv_architecture="convnet_microrts"))
    with pytest.raises(EnvError, match=r"\(10, 3, 10\), an image with its channels in the middle"):
        check(resolve(small, info, cores=1), info)


def test_observation_of_four_axes_is_noted_as_a_vector() -> None:
    leaves = {
        "cells": LeafSpec((2, 20, 3, 20), "float32", path=("cells",)),
        "image": LeafSpec((84, 84, 3), "uint8", path=("image",)),
    }
    (note,) = EnvInfo("Odd-v0", 1, leaves, ActionSpec.discrete(2)).notes("convnet_simple")
    assert note.startswith("Observation 'cells' has shape (2, 20, 3, 20): read as a vector of 2400 numbers.")


def test_small_image_is_noted_as_a_vector() -> None:
    leaves = {"obs": LeafSpec((32, 32, 3), "uint8"), "grid": LeafSpec((32, 32), "float32", path=("grid",))}
    info = EnvInfo("Small-v0", 1, leaves, ActionSpec.discrete(2))
    (note,) = info.notes("convnet_atari")
    assert note == (
        "Observation 'obs' has shape (32, 32, 3): read as a vector of 3072 numbers. For an image, its height and width "
        "must be at least 36; 16 with --encoder_conv_architecture=resnet_impala, 4 with "
        "--encoder_conv_architecture=convnet_microrts."
    )
    assert info.notes("resnet_impala") == []


BOX = ActionColumn(low=-2.0, high=2.0)


@pytest.mark.parametrize(
    ("space", "columns"),
    [
        (spaces.Discrete(6), [ActionColumn(6)]),
        (spaces.Discrete(3, start=-1), [ActionColumn(3, -1)]),
        (spaces.Box(-2, 2, (1,), np.float32), [BOX]),
        (spaces.Box(-2, 2, (), np.float32), [BOX]),
        (spaces.Box(-2, 2, (2, 2), np.float32), [BOX] * 4),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), [ActionColumn()] * 2),
        (
            spaces.MultiDiscrete(np.array([[5, 2], [2, 3]])),
            [ActionColumn(5), ActionColumn(2), ActionColumn(2), ActionColumn(3)],
        ),
        (spaces.MultiDiscrete([5, 2], start=[1, -1]), [ActionColumn(5, 1), ActionColumn(2, -1)]),
        (spaces.MultiBinary(3), [ActionColumn(2)] * 3),
        (
            spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Box(-2, 2, (2,)), spaces.Discrete(4)])}),
            [BOX, BOX, ActionColumn(4), ActionColumn(2)],  # Gymnasium sorts the keys of a Dict
        ),
    ],
)
def test_action_space_becomes_columns(space: spaces.Space[Any], columns: list[ActionColumn]) -> None:
    spec = action_spec(space)
    assert list(spec.columns) == columns
    assert spec.shape == (() if isinstance(space, spaces.Discrete) else (len(columns),))
    assert spec.dtype == ("int64" if all(column.num_choices for column in columns) else "float32")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(3), r"The action space is or contains Text\(.*\), but actions are Discrete, MultiDiscrete"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 9, (2,), np.int64)]), r"contains Box\(0, 9, \(2,\), int64\)"),
        (spaces.Tuple([]), r"The action space is Tuple\(\), which holds no action"),
    ],
)
def test_fault_b17_action_space_is_refused_by_name(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        action_spec(space)


@pytest.mark.parametrize(
    ("mask", "action"),
    [
        (LeafSpec((3,), "int8"), ActionSpec.discrete(4)),
        (LeafSpec((2, 2), "int8"), action_spec(spaces.MultiDiscrete([2, 2]))),
        (LeafSpec((2,), "int8"), action_spec(spaces.Box(-1, 1, (2,)))),
    ],
)
def test_mask_that_does_not_fit_the_actions_is_refused(mask: LeafSpec, action: ActionSpec) -> None:
    with pytest.raises(EnvError, match=r"'action_mask' is int8.* but actions have \d choices.* A mask is a vector of"):
        EnvInfo("Odd-v0", 1, {"obs": LeafSpec((3,), "float32"), "action_mask": mask}, action)


def test_facts_travel_as_pickle_and_as_strict_json() -> None:
    nested = spaces.Dict({"a": spaces.Box(-1, 1, (2, 3)), "b": spaces.Tuple([spaces.Discrete(4, start=1)])})
    actions = spaces.Tuple(
        [spaces.Discrete(3), spaces.Box(np.array([-np.inf, 0], np.float32), np.array([1, np.inf], np.float32))]
    )
    info = EnvInfo("Toy-v0", 2, observation_leaves(nested), action_spec(actions))
    assert pickle.loads(pickle.dumps(info)) == info
    text = json.dumps(info.to_json(), allow_nan=False)
    assert EnvInfo.from_json(json.loads(text)) == info
    assert str(info) == (
        "2 agents, observations {a: float32[2, 3], b/0: categories 1 to 4}, "
        "actions choices 0 to 2, a number from -inf to 1, a number from 0 to inf"
    )
