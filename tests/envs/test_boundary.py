"""What environments return when the first look is long over: single ones, several agents, many at once."""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from sf.envs import EnvSource, observations, probe
from sf.envs.actions import action_converter, vector_action_converter
from sf.envs.batches import make_env_batch
from sf.errors import EnvError
from sf.shared.arena import Array
from sf.spaces.from_gymnasium import STORED_DTYPES, action_spec
from tests.environments.late import GOOD_STEPS, KINDS, ROWS, Late, LateMany, Played, Values, refusal
from tests.helpers.commands import run

AGENT = {"single": "", "many": "", "agents": "agent 1: "}
"""How an error begins in environments of each kind, the last agent of which does what is wrong."""


@KINDS
def test_fault_b13_entries_that_the_space_does_not_have(kind: str) -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Dict({"c": spaces.Box(-1, 1, (3,))})})
    good = {"a": np.zeros(2, np.float32), "b": {"c": np.zeros(3, np.float32)}}
    told = "returned an observation{} with the keys {}, but its observation space has {}. Return exactly those."
    message = refusal(kind, observation_space=space, good=good, observation=good | {"z": np.zeros(2)})
    assert told.format("", ["a", "b", "z"], ["a", "b"]) in message
    below = good | {"b": {"c": np.zeros(3, np.float32), "z": np.zeros(2)}}
    message = refusal(kind, observation_space=space, good=good, observation=below)
    assert told.format(" at 'b'", ["c", "z"], ["c"]) in message


@pytest.mark.parametrize("kind", ["single", "agents"])
@pytest.mark.parametrize("seen", [(np.zeros(2, np.float32),) * 3, np.zeros((3, 2), np.float32)], ids=["3", "array"])
def test_fault_b13_no_tuple_of_as_many_as_the_space_has(kind: str, seen: Any) -> None:
    space, good = spaces.Tuple([spaces.Box(-1, 1, (2,))] * 2), (np.zeros(2, np.float32),) * 2
    assert "but its observation space has [0, 1]" in refusal(kind, observation_space=space, good=good, observation=seen)


@KINDS
@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize("flag", ["False", "", None, float("nan"), 0.0, 2, np.zeros(2, bool), [False]], ids=repr)
def test_fault_b14_flag_that_is_none_is_refused_on_a_later_step(kind: str, name: str, flag: Any) -> None:
    message = refusal(kind, **{name: flag})
    told = f"Late, environment 0, step(): {AGENT[kind]}it returned {name}={flag!r} from step, expected"
    assert message.startswith(f"Late returned {name} " if kind == "many" else told)
    assert "expected True or False" in message


@KINDS
@pytest.mark.parametrize("kind_of_flag", [bool, np.bool_, int, np.int8, np.array])
def test_fault_b14_flags_that_convert_are_taken(kind: str, kind_of_flag: Callable[[bool], Any]) -> None:
    for terminated, truncated in ((False, False), (True, False), (False, True), (True, True)):
        # In the form in which both agents get it, because an episode ends for all of them.
        flags = {"terminated": kind_of_flag(terminated), "truncated": kind_of_flag(truncated)}
        if kind == "agents" and (terminated or truncated) and kind_of_flag is not bool:
            continue
        ended = (played := Played(kind, **flags)).step(GOOD_STEPS + 1)
        assert bool(ended) == (terminated or truncated)
        assert all((one.terminated, one.truncated) == (terminated, truncated) for one in ended)
        assert all(type(one.terminated) is type(one.truncated) is bool for one in ended)
        assert played.has_final.any() == (truncated and not terminated)


@KINDS
@pytest.mark.parametrize("step", [(np.zeros(2, np.float32), 1.0, False, {}), "abcde", [0, 1.0, False, False, {}]])
def test_fault_b14_step_that_returns_no_tuple_of_five(kind: str, step: Any) -> None:
    assert "expected the tuple observation, reward, terminated, truncated, info." in refusal(kind, step=step)


def test_fault_b14_reset_that_returns_no_tuple_of_two() -> None:
    message = refusal("single", terminated=True, reset=np.zeros(2, np.float32))
    assert message.startswith("Late, environment 0, step(): it returned one ndarray from reset, expected the tuple")


@KINDS
@pytest.mark.parametrize("reward", [None, "1.5", np.ones(2), [[1.0], []], 1j, {}], ids=repr)
def test_fault_b14_reward_that_is_no_number(kind: str, reward: Any) -> None:
    assert "returned" in (message := refusal(kind, reward=reward))
    assert "reward" in message


@pytest.mark.parametrize("kind", ["single", "agents"])
@pytest.mark.parametrize("info", [None, "info", [("a", 1)]], ids=repr)
def test_fault_b14_info_that_is_no_dict(kind: str, info: Any) -> None:
    assert f"info is {info!r} ({type(info).__name__}), expected a dict." in refusal(kind, info=info, terminated=True)


@pytest.mark.parametrize("values", [None, 1.0, [1.0], {"a": 1.0, "b": 2.0}], ids=repr)
@pytest.mark.parametrize("place", range(4))
def test_fault_b14_agents_that_do_not_come_as_a_list(values: Any, place: int) -> None:
    parts = [[np.zeros(2, np.float32)] * 2, [1.0] * 2, [False] * 2, [False] * 2, [{}, {}]]
    parts[place] = values
    assert "one per agent" in refusal("agents", step=tuple(parts))


class LazyFrames:
    """An array that is made when somebody asks for it, as wrappers that stack frames return it."""

    def __init__(self, array: Array) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.array, dtype)


def read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


VIEWS: dict[str, Callable[[Array], Any]] = {
    "reversed": lambda array: array[::-1, ::-1].copy()[::-1, ::-1],
    "every second": lambda array: np.repeat(np.repeat(array, 2, 0), 2, 1)[::2, ::2],
    "transposed": lambda array: array.T.copy().T,
    "Fortran": np.asfortranarray,
    "broadcast": lambda array: np.broadcast_to(array[:1, :1], array.shape),
    "read-only": read_only,
    "other byte order": lambda array: array.astype(">f4"),
    "lazy": LazyFrames,
    "list": lambda array: array.tolist(),
}


@pytest.mark.parametrize("kind", ["single", "agents"])
@pytest.mark.parametrize("view", VIEWS)
def test_fault_b12_views_of_any_kind_are_read_as_they_are(kind: str, view: str) -> None:
    array = np.full((3, 2), 5.0, np.float32) if view == "broadcast" else np.arange(6, dtype=np.float32).reshape(3, 2)
    box = spaces.Box(-10, 10, (3, 2))
    played = Played(kind, observation_space=box, good=np.zeros((3, 2), np.float32), observation=VIEWS[view](array))
    played.step(GOOD_STEPS)
    assert (played.observations["obs"] == 0).all()
    played.step()
    odd = played.observations["obs"] if kind == "single" else played.observations["obs"][1::2]
    assert (odd == array).all()


class Reusing(gym.Env[Any, Any]):
    """Every copy returns the same array as its reward and the same info, and `reset` clears that."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    reward, info, made = np.zeros(1), dict[str, Any](), 0

    def __init__(self) -> None:
        self.index, Reusing.made = Reusing.made, Reusing.made + 1

    def reset(self, **_: Any) -> Any:
        self.info.clear()
        return np.zeros(2, np.float32), self.info

    def step(self, action: Any) -> Any:
        self.reward[0] = self.index
        self.info["true_objective"] = 10.0 * self.index
        return np.zeros(2, np.float32), self.reward, True, False, self.info


class ReusingPair(Reusing):
    """The same with two agents, whose rewards are two views of one array."""

    num_agents = 2

    def reset(self, **_: Any) -> Any:
        seen, info = super().reset()
        return [seen] * 2, [info] * 2

    def step(self, action: Any) -> Any:
        seen, reward, *_ = super().step(action)
        return [seen] * 2, [reward] * 2, [True] * 2, [False] * 2, [self.info] * 2


@pytest.mark.parametrize("kind", [Reusing, ReusingPair])
def test_fault_b12_rewards_and_infos_are_copied_when_they_are_returned(kind: type[Reusing]) -> None:
    source = EnvSource("Reusing", {}, kind)
    info, rows, final = probe(source), np.zeros((4, 2), np.float32), np.zeros((4, 2), np.float32)
    Reusing.made = 0
    batch = make_env_batch(source, info, range(4 // info.num_agents), {"obs": final}, np.zeros(4, bool), "clip")
    batch.reset({"obs": rows})
    rewards = np.zeros(4, np.float32)
    ended = batch.step(np.zeros(4, np.int64), {"obs": rows}, rewards)
    expected = [row // info.num_agents for row in range(4)]
    assert rewards.tolist() == expected
    assert [one.info["true_objective"] for one in ended] == [10.0 * index for index in expected]


@pytest.mark.parametrize(
    ("mode", "arguments", "message"),
    [
        (
            "SAME_STEP",
            {},
            r"of environment 3 and reset it in the same step, but infos has no 'final_obs' of it, only \[",
        ),
        ("SAME_STEP", {"infos": None}, r"returned infos of type NoneType, expected one dict"),
        ("SAME_STEP", {"infos": {"final_obs": [None] * 4}}, r"a final observation 'obs' of shape \(\), but .* \(2,\)"),
        ("SAME_STEP", {"infos": {"final_obs": np.zeros((4, 1))}}, r"a final observation 'obs' of shape \(1,\), but"),
        ("SAME_STEP", {"infos": {"final_obs": np.zeros((4, 2), "M8[s]")}}, r"of dtype datetime64\[s\], which does not"),
        (
            "DISABLED",
            {"observation": np.zeros(1, np.float32)},
            r"a final observation 'obs' float32\[4, 1\], expected float32\[4, 2\]",
        ),
        ("NEXT_STEP", {"observation": "ab"}, r"a final observation 'obs' <U2\[4\], expected float32\[4, 2\]"),
    ],
)
def test_fault_b10_final_observation_of_many_at_once(mode: str, arguments: Values, message: str) -> None:
    """Nothing of it is broadcast or cast, and what is missing is named."""
    with pytest.raises(EnvError, match=message) as caught:
        Played("many", mode=AutoresetMode[mode], truncated=True, **arguments).step(GOOD_STEPS + 1)
    assert type(caught.value) is EnvError


def test_fault_b13_final_observation_with_entries_that_the_space_does_not_have() -> None:
    """Where environments were reset within the step, it is among the infos."""
    space, good = spaces.Dict({"a": spaces.Box(-1, 1, (2,))}), {"a": np.zeros(2, np.float32)}
    mode: Values = {"mode": AutoresetMode.SAME_STEP, "truncated": True, "observation_space": space, "good": good}
    Played("many", infos={"final_obs": [good] * ROWS}, **mode).step(GOOD_STEPS + 1)
    told = r"a final observation of environment 3 with the keys \['a', 'z'\], but its observation space has \['a'\]"
    with pytest.raises(EnvError, match=told):
        Played("many", infos={"final_obs": [good | {"z": np.zeros(2)}] * ROWS}, **mode).step(GOOD_STEPS + 1)
    mode |= {"mode": AutoresetMode.DISABLED, "observation": good | {"z": np.zeros(2)}, "reset": (good, {})}
    with pytest.raises(EnvError, match=r"a final observation with the keys \['a', 'z'\]"):
        Played("many", **mode).step(GOOD_STEPS + 1)


@KINDS
def test_subclasses_of_dict_are_not_compared_key_by_key(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every comparison of keys costs more than the step of a fast environment."""
    space, good = spaces.Dict({"a": spaces.Box(-1, 1, (2,))}), OrderedDict(a=np.zeros(2, np.float32))
    played = Played(kind, observation_space=space, good=good)
    monkeypatch.setattr(observations, "check_keys", None)  # whoever calls it fails
    played.step(GOOD_STEPS)


def test_actions_are_copies_whoever_writes_into_them() -> None:
    """What a policy has drawn stays in the slot, because its log-probability belongs to it."""
    played = Played("many")
    played.batch.env.step = lambda actions: actions.fill(7) or LateMany(ROWS).step(actions)  # type: ignore[attr-defined]
    played.step()
    assert not played.actions.any()
    for space in (spaces.Box(-1, 1, (2,)), spaces.Box(-np.inf, np.inf, (2,)), spaces.MultiDiscrete([3, 3])):
        stored = np.zeros((ROWS, 2), action_spec(space).dtype)
        for convert in (action_converter(space, "clip"), vector_action_converter(space, "clip")):
            for action in convert(stored):
                action[:] = 1
            assert not stored.any()


def of_type(name: str) -> Values:
    dtype: Any = np.dtype(name)
    high = {"b": 1, "i": 100}.get(dtype.kind, 200)
    return {"observation_space": spaces.Box(0, high, (2,), dtype), "good": np.zeros(2, dtype)}


@KINDS
@pytest.mark.parametrize("place", ["step", "final"])
@pytest.mark.parametrize(
    ("promised", "odd"),
    [
        ("float32", np.ones(2, bool)),
        ("float64", [True, False]),
        ("float32", np.ones(2, np.complex64)),
        ("float32", np.array(["1", "2"])),
        ("float32", np.ones(2, np.int64)),
        ("float32", np.array([1.0, None])),
        ("uint8", np.ones(2, np.float32)),
        ("uint8", np.array([0, 256])),
        ("uint8", np.array([-1, 0], np.int8)),
        ("int8", np.array([0, 128], np.uint8)),
        ("int16", np.array([0, 2**15], np.int32)),
        ("bool", np.array([0.0, 1.0])),
    ],
)
def test_fault_b11_cast_that_loses_something(kind: str, place: str, promised: str, odd: Any) -> None:
    message = refusal(kind, **of_type(promised), observation=odd, truncated=place == "final")
    assert f"{np.asarray(odd).dtype}" in message
    assert "'obs'" in message


@KINDS
@pytest.mark.parametrize(
    ("promised", "odd"),
    [
        ("float32", np.array([0.5, 100], np.float64)),
        ("float64", np.array([0.5, 100], np.float16)),
        ("float32", np.array([3, 7], np.uint8)),
        ("uint8", np.array([0, 200], np.int64)),
        ("int64", np.array([0, 100], np.uint64)),
        ("int32", [3, 7]),
        ("bool", np.array([True, False])),
    ],
)
def test_fault_b11_cast_that_loses_nothing(kind: str, promised: str, odd: Any) -> None:
    played = Played(kind, **of_type(promised), observation=odd)
    played.step(GOOD_STEPS + 1)
    stored = played.observations["obs"]
    assert stored[-1].tolist() == np.asarray(odd).tolist()
    assert kind == "many" or stored.dtype.name == STORED_DTYPES[promised]


@KINDS
@pytest.mark.parametrize("place", ["step", "final"])
@pytest.mark.parametrize("odd", [np.zeros(1, np.float32), np.float32(0), np.zeros((1, 2)), [[1.0], [1.0, 2.0]], None])
def test_fault_b10_shape_that_would_be_broadcast(kind: str, place: str, odd: Any) -> None:
    message = refusal(kind, observation=odd, truncated=place == "final")
    assert "observation 'obs'" in message
    assert "(2,)" in message or "float32[4, 2]" in message


MASKED = spaces.Dict(
    {"action_mask": spaces.Box(0, 1, (2,), np.float32), "seen": spaces.MultiDiscrete([3, 2], start=[1, 0])}
)


GOOD_MASKED = {"action_mask": np.ones(2, np.float32), "seen": np.array([1, 0])}


@pytest.mark.parametrize(
    ("kind", "place"),
    [*itertools.product(["single", "agents"], ["step", "reset", "final"]), ("many", "step"), ("many", "final")],
)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action_mask": np.zeros(2, np.float32)}, "the action mask [0.0, 0.0], which forbids all of action column 0"),
        ({"action_mask": np.array([np.nan, 1], np.float32)}, "the action mask [nan, 1.0], which holds NaN. Use 0"),
        ({"seen": np.array([0, 0])}, "an observation 'seen' with the value [0 0], but its observation space promises"),
        ({"seen": np.array([4, 0])}, "'seen' with the value [4 0], but its observation space promises categories 1 to"),
        ({"seen": np.array([1, 2])}, "'seen' with the value [1 2], but its observation space promises categories 1 to"),
    ],
)
def test_fault_b11_mask_or_category_out_of_range(kind: str, place: str, changes: Values, message: str) -> None:
    """All rows are looked at together, and the error names the one."""
    odd = GOOD_MASKED | changes
    returned: dict[str, Values] = {
        "step": {"observation": odd},
        "reset": {"terminated": True, "reset": (odd, {})},
        "final": {"observation": odd, "truncated": True},
    }
    if place == "final" and "action_mask" in changes:  # no move follows
        assert Played(kind, observation_space=MASKED, good=GOOD_MASKED, **returned[place]).step(GOOD_STEPS + 1)
        return
    said = refusal(kind, observation_space=MASKED, good=GOOD_MASKED, **returned[place])
    agent = AGENT[kind].replace("1", "0") if place == "reset" else AGENT[kind]  # all of them begin so
    assert said.startswith("Late, environment 3: it " if kind == "many" else f"Late, environment 0, step(): {agent}it ")
    assert message in said


class LateOnOrder(Late):
    """With the flag that a text describes, which a command line can hold."""

    def __init__(self, odd: str) -> None:
        name, value = odd.split("=")
        super().__init__(**{name: json.loads(value)})


gym.register("Late-v0", entry_point="tests.envs.test_boundary:LateOnOrder")


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ('terminated="False"', "it returned terminated='False' from step, expected True or False."),
        ("truncated=null", "it returned truncated=None from step, expected True or False."),
        (
            "observation=[true, false]",
            "it returned an observation 'obs' of dtype bool, which does not fit into float32",
        ),
        ("observation=[0.0]", "it returned an observation 'obs' of shape (1,), but"),
    ],
)
def test_fault_b10_b11_b14_whole_run_ends_with_code_3(tmp_path: Path, odd: str, message: str) -> None:
    arguments = json.dumps({"odd": odd})
    flags = ("--num_workers=1", "--num_envs_per_worker=4", "--updates=fast", "--train_for_env_steps=100000")
    finished = run(tmp_path, "--env=tests.envs.test_boundary:Late-v0", f"--env_kwargs={arguments}", *flags)
    assert finished.code == 3, finished.out + finished.err
    assert message in finished.err + finished.out
