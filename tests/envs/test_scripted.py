"""Functions of a user that act."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sf.envs.actions import action_converter
from sf.envs.scripted import ScriptedPolicy
from sf.errors import ConfigError, EnvError
from sf.shared.arena import Array
from sf.spaces import ActionBounds, EnvInfo
from sf.spaces.from_gymnasium import action_spec, observation_leaves

BOX = spaces.Box(-1, 1, (2,), np.float32)


def facts(observation: Any = BOX, action: Any = None) -> EnvInfo:
    """The spaces of an environment, by default with four choices from 3 on."""
    action = spaces.Discrete(4, start=3) if action is None else action
    return EnvInfo("toy", 2, observation_leaves(observation), action_spec(action))


def scripted(
    monkeypatch: pytest.MonkeyPatch, player: Any, info: EnvInfo, bounds: ActionBounds = "scale"
) -> ScriptedPolicy:
    module = ModuleType("teams")
    module.player = player  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "teams", module)
    return ScriptedPolicy("teams:player", info, bounds)


def acts(policy: ScriptedPolicy, **leaves: Array) -> Array:
    return policy.actions(leaves, np.random.default_rng(0))


def test_every_row_is_given_to_the_function_and_choices_are_stored_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def player(observation: Any, random: np.random.Generator) -> int:
        seen.append(observation.tolist())
        observation[:] = 9  # may be written into
        return 4 if observation is not None and len(seen) % 2 else 6

    rows = np.array([[0, 1], [0.5, 0.25], [1, 0]], np.float32)
    actions = acts(scripted(monkeypatch, player, facts()), obs=rows)
    assert actions.tolist() == [1, 3, 1]
    assert actions.dtype == np.int64
    assert seen == [[0, 1], [0.5, 0.25], [1, 0]] == rows.tolist()


def test_the_observation_has_the_shape_of_its_space_with_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    nest = {"camera": spaces.Tuple([BOX, spaces.Discrete(3)]), "action_mask": spaces.MultiBinary(4)}
    info, seen = facts(spaces.Dict(nest)), []

    def player(observation: Any, random: np.random.Generator) -> Any:
        seen.append(observation)
        return 3 + random.choice(np.flatnonzero(observation["action_mask"]))

    leaves = {
        "camera/0": np.zeros((5, 2), np.float32), "camera/1": np.full(5, 2), "action_mask": np.array([[0, 1, 0, 1]] * 5)
    }  # fmt: skip
    actions = acts(scripted(monkeypatch, player, info), **leaves)
    assert set(actions.tolist()) == {1, 3}
    assert all(isinstance(one["camera"], tuple) and one["camera"][1] == 2 for one in seen)


SPACES = {
    "multi-discrete": spaces.MultiDiscrete([3, 4], start=[1, -2]),
    "multi-binary": spaces.MultiBinary(3),
    "grid of choices": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "box": spaces.Box(np.array([-2, 0.7], np.float32), np.array([0.1, 5], np.float32)),
    "number": spaces.Box(-0.3, 0.7, ()),
    "nest": spaces.Dict({"turn": spaces.Discrete(3, start=1), "force": spaces.Box(-2, 2, (2,)), "pair": spaces.Tuple(
        [spaces.Discrete(2), spaces.MultiBinary(2)])}),
}  # fmt: skip


@pytest.mark.parametrize("bounds", ["scale", "clip", "tanh"])
@pytest.mark.parametrize("name", SPACES)
def test_the_environment_gets_what_the_function_returned(
    name: str, bounds: ActionBounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    space: Any = SPACES[name]
    space.seed(3)
    wanted = [space.sample() for _ in range(20)]
    left = iter(wanted)
    policy = scripted(monkeypatch, lambda *_: next(left), facts(action=space), bounds)
    stored = acts(policy, obs=np.zeros((20, 2), np.float32))
    assert stored.shape[1:] == policy.info.action.shape
    assert stored.dtype == policy.info.action.dtype
    for action, expected in zip(action_converter(space, bounds)(stored), wanted, strict=True):
        assert space.contains(action)
        got, given = (np.asarray(spaces.flatten(space, one), np.float64) for one in (action, expected))
        np.testing.assert_allclose(got, given, atol=1e-5)


@pytest.mark.parametrize("bounds", ["scale", "clip", "tanh"])
def test_bounds_of_a_box_may_be_reached(bounds: ActionBounds, monkeypatch: pytest.MonkeyPatch) -> None:
    space = spaces.Box(-0.3, 0.7, (2,))
    policy = scripted(monkeypatch, lambda *_: [-0.3, 0.7], facts(action=space), bounds)
    (action,) = action_converter(space, bounds)(acts(policy, obs=np.zeros((1, 2), np.float32)))
    np.testing.assert_allclose(action, [-0.3, 0.7], atol=1e-6)


NOT_FOUND = {
    "alphabetical": "alphabetical is no scripted policy, expected module:function.",
    "teams:none": "teams:none cannot be imported: module 'teams' has no attribute 'none'. Check the names",
    "no_such_module:f": "no_such_module:f cannot be imported: No module named 'no_such_module'",
    "teams:player": "teams:player is of type int, expected a function.",
}


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_is_no_function_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="expected a function"):
        scripted(monkeypatch, 3, facts())
    with pytest.raises(ConfigError) as caught:
        ScriptedPolicy(name, facts())
    assert NOT_FOUND[name] in str(caught.value)


CALL = "teams:player, called with the observation array([0., 0.], dtype=float32),"
PLAIN = "expected an action of toy: choices 3 to 6."
NO_ACTIONS = {
    "out of range": (7, spaces.Discrete(4, start=3), f"{CALL} returned 7, {PLAIN}"),
    "number": (3.0, spaces.Discrete(4, start=3), f"{CALL} returned 3.0 of type float, {PLAIN}"),
    "nothing": (None, spaces.Discrete(4, start=3), f"{CALL} returned None of type NoneType, {PLAIN}"),
    "shape": ([1, 2], spaces.Discrete(4, start=3), f"{CALL} returned [1, 2] of type list, {PLAIN}"),
    "nan": ([0.0, float("nan")], BOX, "returned [0.0, nan], expected an action of toy: 2 x a number from -1 to 1."),
    "beyond": ([0.0, 1.5], BOX, "returned [0.0, 1.5], expected an action of toy: 2 x a number from -1 to 1."),
    "entry": ({"a": 1}, spaces.Dict({"b": spaces.Discrete(2)}), "returned {'a': 1} without the entry 'b', expected"),
}


@pytest.mark.parametrize("name", NO_ACTIONS)
def test_what_is_no_action_is_refused_with_the_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    returned, space, message = NO_ACTIONS[name]
    policy = scripted(monkeypatch, lambda *_: returned, facts(action=space))
    with pytest.raises(EnvError) as caught:
        acts(policy, obs=np.zeros((1, 2), np.float32))
    assert message in str(caught.value)


def test_an_illegal_action_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    info = facts(spaces.Dict({"action_mask": spaces.MultiBinary(5)}), spaces.MultiDiscrete([2, 3]))
    policy = scripted(monkeypatch, lambda *_: [1, 2], info)
    assert acts(policy, action_mask=np.array([[0, 1, 0, 0, 1]])).tolist() == [[1, 2]]
    with pytest.raises(EnvError, match=r"returned \[1, 2\], which the mask forbids, expected an action of toy"):
        acts(policy, action_mask=np.array([[1, 1, 1, 1, 0]]))


def test_an_exception_is_told_with_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def player(observation: Any, random: np.random.Generator) -> int:
        raise KeyError("red")

    with pytest.raises(EnvError) as caught:
        acts(scripted(monkeypatch, player, facts()), obs=np.zeros((1, 2), np.float32))
    assert str(caught.value) == f"{CALL} raised KeyError: 'red'"
