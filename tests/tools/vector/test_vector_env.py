"""`sf.vector_env` beside Gymnasium's own."""

from __future__ import annotations

import copy
import gc
import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import sf
from sf.envs import EnvSource, probe
from sf.envs.stepping import Host
from sf.errors import UsageError
from sf.tools.vector.worker import HostedEnvs, ResetArguments
from tests.helpers.handed_over import Kept

NESTED = spaces.Dict({"b": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))), "a": spaces.MultiBinary(4)})
CHOICES = spaces.MultiDiscrete([3, 5])


class Counting(gymnasium.Env[Any, Any]):
    """Shows how it was reset, and what it was given; an episode has five steps."""

    def __init__(self, action_space: Any = CHOICES) -> None:
        self.observation_space, self.action_space = copy.deepcopy(NESTED), action_space
        self.render_mode = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {"options": sorted(options or {}), "seed": -1 if seed is None else seed}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        info = {"given": np.asarray(action), "kind": type(action).__name__}
        over = self.steps == 5
        return self.observation_space.sample(), float(np.sum(action)), over and bool(action[0]), over, info


class Typed(gymnasium.Env[Any, Any]):
    """Observations of types that have another one in shared memory, drawn from NumPy's global generator."""

    observation_space: spaces.Dict = spaces.Dict(
        {
            "half": spaces.Box(-1, 1, (2,), np.float16),
            "short": spaces.Box(0, 9, (2,), np.uint16),
            "long": spaces.Box(0, 9, (2,), np.uint32),
            "flags": spaces.Box(0, 1, (2,), np.bool_),
            "choice": spaces.Discrete(2, dtype=np.int8),
        }
    )
    action_space = spaces.Discrete(2, dtype=np.int8)

    def seen(self) -> Any:
        one = np.random.random()
        return {
            name: (np.int8(one > 0.5) if isinstance(part, spaces.Discrete) else np.full(2, one, np.float64)).astype(
                part.dtype
            )
            for name, part in self.observation_space.spaces.items()
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.seen(), 1.0, False, self.steps == 2, {"kind": str(action.dtype)}


@pytest.mark.more
def test_types_are_those_of_the_space_and_a_seed_reaches_global_generators() -> None:
    ours = sf.vector_env(Typed, num_envs=4, num_workers=2)
    try:
        first, _ = ours.reset(seed=3)
        for seen in (first, ours.step(np.zeros(4, np.int8))[0]):
            assert {name: array.dtype for name, array in seen.items()} == {
                name: part.dtype
                for name, part in ours.observation_space.items()  # type: ignore[attr-defined]  # a Dict
            }
        _, _, _, truncated, infos = ours.step(np.zeros(4, np.int8))
        assert truncated.all()
        assert all(Typed.observation_space.contains(one) for one in infos["final_obs"])
        assert set(infos["final_info"]["kind"]) == {"int8"}
        expect_same(ours.reset(seed=3)[0], first)
        assert (ours.reset(seed=4)[0]["half"] != first["half"]).any()
    finally:
        ours.close()


class Breaking(gymnasium.Env[Any, Any]):
    """Does what its name says when it is given a 1."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def __init__(self, how: str = "raise") -> None:
        self.how = how

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action and self.how == "hang":
            time.sleep(1000)
        if action:
            raise RuntimeError("no more fuel")
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Reusing(Breaking):
    """Has one info, which a reset clears."""

    def reset(self, **arguments: Any) -> Any:
        self.info: Any = {"steps": np.zeros(1), "more": {"steps": [0]}}
        return super().reset(**arguments)[0], self.info

    def step(self, action: Any) -> Any:
        self.info["steps"] += 1
        self.info["more"]["steps"][0] += 1
        return np.zeros(2, np.float32), 1.0, True, False, self.info


class ClearsInfo(Reusing):
    def reset(self, **arguments: Any) -> Any:
        if not hasattr(self, "info"):
            return super().reset(**arguments)
        self.info["steps"][:] = self.info["more"]["steps"][0] = 0
        return np.zeros(2, np.float32), self.info


def test_an_info_that_is_used_again_is_that_of_the_last_step() -> None:
    source = EnvSource("Clears", factory=ClearsInfo)
    info = probe(source)
    observations = {"obs": np.zeros((2, 2), np.float32)}
    finals = {"obs": np.zeros((2, 2), np.float32)}
    batch = HostedEnvs(source, info, [0, 1], finals, np.zeros(2, bool), "clip", Host())
    batch.use_actions_as_given(ClearsInfo.action_space)
    batch.reset_all(ResetArguments([0, 1], None), observations)
    for one in batch.step(np.zeros(2, np.int64), observations, np.zeros(2)):
        assert (one.info["steps"].item(), one.info["more"]["steps"]) == (1, [1])


def expect_same(found: Any, wanted: Any) -> None:
    """Nests of arrays with equal dtypes and values."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, part in wanted.items():
            expect_same(found[key], part)
    elif isinstance(wanted, tuple):
        for one, other in zip(found, wanted, strict=True):
            expect_same(one, other)
    elif wanted.dtype == object:
        for one, other in zip(found, wanted, strict=True):
            if isinstance(other, (dict, tuple, np.ndarray)):
                expect_same(one, other)
            else:
                assert one == other
    else:
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.more
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Counting"])
def test_steps_are_those_of_gymnasium(env: str) -> None:
    """Episodes end in the first 60 steps of all but Pendulum, which is cut after 30."""
    maker: Any = Counting if env == "Counting" else env
    limit = 30 if env == "Pendulum-v1" else None
    theirs = SyncVectorEnv(
        [Counting if env == "Counting" else lambda: gymnasium.make(env, max_episode_steps=limit)] * 5,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    ours = sf.vector_env(maker, num_envs=5, num_workers=2, max_episode_steps=limit)
    try:
        assert ours.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
        expect_same(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
        theirs.action_space.seed(1)
        num_ended = 0
        for _ in range(60):
            actions = theirs.action_space.sample()
            *found, infos = ours.step(actions)
            *wanted, their_infos = theirs.step(actions)
            for one, other in zip(found, wanted, strict=True):
                expect_same(one, other)
            assert set(infos) <= set(their_infos)
            if wanted[2].any() or wanted[3].any():
                num_ended += 1
                for key in ("final_obs", "_final_obs", "final_info", "_final_info"):
                    expect_same(infos[key], their_infos[key])
            else:
                assert infos == {}
        assert num_ended
    finally:
        ours.close()
        theirs.close()


@pytest.mark.more
def test_reset_hands_on_options_and_one_seed_for_each() -> None:
    ours = sf.vector_env(Counting, num_envs=3, num_workers=2)
    try:
        first = ours.reset(seed=[5, 6, 5], options={"level": 2})[0]
        assert (first["a"][0] == first["a"][2]).all()
        again, infos = ours.reset(seed=[5, None, 7], options={"level": 2})
        assert (first["a"][0] == again["a"][0]).all()
        assert infos["seed"].tolist() == [5, -1, 7]
        assert [list(names) for names in infos["options"]] == [["level"]] * 3
        with pytest.raises(UsageError, match="2 seeds for 3 environments"):
            ours.reset(seed=[1, 2])
    finally:
        ours.close()


def test_arrays_belong_to_the_caller() -> None:
    ours = sf.vector_env("Pendulum-v1", num_envs=2)
    try:
        first, _ = ours.reset(seed=0)
        before = first.copy()
        second, *_ = ours.step(np.ones((2, 1), np.float32))
        assert (first == before).all()
        assert (second != before).any()
    finally:
        ours.close()


def test_ends_with_everything_that_it_has_started() -> None:
    ours = sf.vector_env("CartPole-v1", num_envs=4, num_workers=2)
    assert len([one for one in psutil.Process().children() if one.name().startswith("sf-envs")]) == 2
    ours.close()
    ours.close()
    assert not [one for one in psutil.Process().children() if one.name().startswith("sf-envs")]
    with pytest.raises(UsageError, match="is closed"):
        ours.step(np.zeros(4, int))


@pytest.mark.more
def test_options_may_be_long() -> None:
    ours = sf.vector_env(Counting, num_envs=3, num_workers=2)
    try:
        seed: Any = np.int64(3)
        _, infos = ours.reset(seed=seed, options={"long": np.zeros(1_000_000)})
        assert infos["seed"].tolist() == [3, 4, 5]
    finally:
        ours.close()


def test_an_environment_that_is_not_closed_ends_when_nothing_refers_to_it() -> None:
    ours = sf.vector_env("CartPole-v1", num_envs=2, num_workers=2)
    ours.reset()
    del ours
    gc.collect()
    assert not [one for one in psutil.Process().children() if one.name().startswith("sf-envs")]


class Remembering(gymnasium.Env[Any, Any]):
    """Keeps the action that it is given, and shows the one before; every third step ends an episode."""

    observation_space, action_space = spaces.Box(-9, 9, (2,)), spaces.Box(-9, 9, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if options is not None:
            options["seen"] = options.get("seen", 0) + 1  # which no other environment may see
        self.t, self.kept = 0, np.zeros(2, np.float32)
        return np.zeros(2, np.float32), {"options": dict(options or {})}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before, self.kept = self.kept, action
        self.t += 1
        return np.array(before, np.float32), float(before[0]), self.t == 3, self.t == 6, {}


@pytest.mark.more
def test_results_and_actions_belong_to_those_who_have_them() -> None:
    """Nothing that a program or an environment keeps changes with a later step."""
    ours = sf.vector_env(Remembering, num_envs=3, num_workers=2)
    try:
        ours.reset()
        results: list[Kept] = []
        given: list[Any] = []
        for t in range(7):
            actions = np.full((3, 2), t + 1, np.float32) + np.arange(3, dtype=np.float32)[:, None] / 4
            given.append(actions.copy())
            result = ours.step(actions)
            actions[:] = 77
            results.append(Kept(*result[:4], *(infos for infos in result[4].get("final_obs", ()))))
            if t % 3:
                np.testing.assert_array_equal(result[1], given[t - 1][:, 0])
            if t % 3 == 2:
                assert result[2].all()
                np.testing.assert_array_equal(np.stack(list(result[4]["final_obs"])), given[t - 1])
        for kept in results:
            kept.expect_same()
    finally:
        ours.close()


@pytest.mark.more
def test_each_environment_has_options_of_its_own() -> None:
    ours = sf.vector_env(Remembering, num_envs=3, num_workers=1)
    try:
        _, infos = ours.reset(options={"level": 1})
        assert list(infos["options"]["seen"]) == [1, 1, 1]
    finally:
        ours.close()
