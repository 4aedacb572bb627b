"""Environments: found by id, made in any process, looked at before a run, and every fault of theirs in a sentence."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from sf_envs.echo import TwoAgentEcho

from sf.envs import EnvSource, find_env, probe, probe_and_time, register_env, registry
from sf.envs.suggestions import unknown_name
from sf.errors import EnvCrashed, EnvError
from sf.spaces import ActionSpec, LeafSpec
from tests.environments.toys import Fickle, Raising, Toy, TwoToys


@pytest.fixture(autouse=True)
def clean_registries() -> Iterator[None]:
    """No test sees what another one has registered; packages register when they are imported, which is done once."""
    ours, theirs, modules = dict(registry._registered), dict(gymnasium.registry), set(sys.modules)
    yield
    for env_id, spec in gymnasium.registry.items():
        if isinstance(spec.entry_point, str) and not spec.entry_point.startswith(("tests.", "temporary_")):
            theirs.setdefault(env_id, spec)
    for now, before in ((registry._registered, ours), (gymnasium.registry, theirs)):
        now.clear()
        now.update(before)  # type: ignore[arg-type]  # both are of the type of their registry
    for module in set(sys.modules) - modules:
        if module.startswith("temporary_"):
            del sys.modules[module]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Writes a module that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


class NoAgents(TwoAgentEcho):
    """An environment without agents."""

    num_agents = 0


def offer(monkeypatch: pytest.MonkeyPatch, *tables: Any) -> None:
    """Pretends that packages with these tables are installed; an exception stands for one that cannot be loaded."""

    def load(table: Any) -> Any:
        if isinstance(table, Exception):
            raise table
        return table

    points = [SimpleNamespace(value="some_package:ENVIRONMENTS", load=functools.partial(load, t)) for t in tables]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "sf.envs" else [])


def refusal(env_id: str, **kwargs: Any) -> str:
    with pytest.raises(EnvError) as caught:
        probe(find_env(env_id, kwargs))
    return str(caught.value)


class TestFinding:
    def test_gymnasium_id_with_arguments(self) -> None:
        source = find_env("CartPole-v1", {"sutton_barto_reward": True})
        assert source.make().unwrapped._sutton_barto_reward
        assert source.make(render_mode="rgb_array").render_mode == "rgb_array"

    def test_registered_name_comes_first_and_travels(self) -> None:
        register_env("CartPole-v1", Toy)
        source: EnvSource = pickle.loads(pickle.dumps(find_env("CartPole-v1", {"reward": 2.0})))
        env = source.make()
        assert isinstance(env, Toy)
        assert env.returned["reward"] == 2.0

    def test_packages_offer_environments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        offer(monkeypatch, {"Unusual-v0": Toy}, {"Unusual-v1": "tests.environments.toys:TwoToys"})
        assert isinstance(find_env("Unusual-v0").make(), Toy)
        assert isinstance(find_env("Unusual-v1").make(), TwoToys)
        assert "Did you mean Unusual-v1 or Unusual-v0?" in refusal("Unusual-v11")

    def test_packages_offer_families_of_environments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        offer(monkeypatch, {"toys/*": "tests.environments.toys:named_toy", "toys/special": Toy})
        source: EnvSource = pickle.loads(pickle.dumps(find_env("toys/red", {"reward": 2.0})))
        made = source.make().returned
        assert (made["name"], made["reward"]) == ("red", 2.0)
        assert "name" not in find_env("toys/special").make().returned
        assert "There is no environment 'others/red'" in refusal("others/red")

    def test_broken_package_does_not_hide_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        offer(monkeypatch, ImportError("no numba"), {"A-v0": Toy})
        with pytest.warns(UserWarning, match=r"some_package:ENVIRONMENTS are not available: ImportError: no numba"):
            assert isinstance(find_env("A-v0").make(), Toy)

    def test_module_that_registers_with_gymnasium(self, module: Callable[[str, str], str]) -> None:
        name = module(
            "temporary_a",
            "import gymnasium\ngymnasium.register('Temp-v0', entry_point='tests.environments.toys:Toy')\n",
        )
        source = find_env(f"{name}:Temp-v0")
        assert source.modules == (name,)
        del gymnasium.registry["Temp-v0"], sys.modules[name]
        assert isinstance(source.make().unwrapped, Toy)  # as in a spawned process, which has not imported the module

    def test_module_that_registers_with_sf(self, module: Callable[[str, str], str]) -> None:
        name = module(
            "temporary_b", "import sf.envs, tests.environments.toys as t\nsf.envs.register_env('Mine', t.Toy)\n"
        )
        assert isinstance(find_env(f"{name}:Mine").make(), Toy)

    @pytest.mark.parametrize(
        ("env_id", "message"),
        [
            ("CartPol-v1", "There is no environment 'CartPol-v1'. Did you mean CartPole-v1 or "),
            ("cartpole-v1", "There is no environment 'cartpole-v1'. Did you mean CartPole-v1 or "),
            ("LunarLander-v2", "Did you mean LunarLander-v3 or "),
            ("Ant", "There is no environment 'Ant'. Did you mean Ant-v5 or "),
            (
                "qqqqqqqqqqqq",
                "There is no environment 'qqqqqqqqqqqq', and no similar name. Use a Gymnasium id such as CartPole-v1, "
                "module:Id for an environment that a module registers, or sf.register_env.",
            ),
            (
                "no_such_module.x:Foo-v0",
                "env=no_such_module.x:Foo-v0 names the module no_such_module.x, which cannot be found. Check its name, "
                "and that it is in the working directory, in PYTHONPATH or in an installed package.",
            ),
        ],
    )
    def test_fault_g2_unknown_id_is_answered_with_the_nearest(self, env_id: str, message: str) -> None:
        assert message in refusal(env_id)

    @pytest.mark.parametrize(
        ("env_id", "near"),
        [
            ("PongNoFrameskip-v4", "atari/Pong"),
            ("BreakoutDeterministic-v4", "atari/Breakout"),
            ("MiniGrid-Empty-5x5-v0", "minigrid/Empty-5x5"),
            ("MiniGrid-ObstructedMaze-Full-v1", "minigrid/ObstructedMaze-Full-v1"),
            ("ALE/Pog-v5", "ALE/Pong-v5"),
        ],
    )
    def test_id_of_another_package_is_answered_with_ours(self, env_id: str, near: str) -> None:
        message = unknown_name(env_id, ["ALE/Pong-v5", "CartPole-v1"])
        assert message == f"There is no environment {env_id!r}. Did you mean {near}?"

    def test_module_that_raises_is_blamed_with_its_traceback(self, module: Callable[[str, str], str]) -> None:
        name = module("temporary_c", "import no_such_dependency\n")
        message = refusal(f"{name}:Foo-v0")
        assert message.startswith(
            "temporary_c:Foo-v0 raised ModuleNotFoundError in the import of temporary_c. Its trac"
        )
        assert 'temporary_c.py", line 1' in message

    def test_fault_g2_missing_extra_has_its_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def make(*_: Any, **__: Any) -> None:
            raise gymnasium.error.DependencyNotInstalled("run `pip install swig`") from ImportError("No module Box2D")

        monkeypatch.setattr(gymnasium, "make", make)
        assert refusal("LunarLander-v3") == (
            "LunarLander-v3 needs a package that is not installed (No module Box2D). "
            'Install it with: pip install "sf-rl[box2d]"'
        )
        assert '"sf-rl[mujoco]"' in refusal("HalfCheetah-v5")
        assert refusal("CartPole-v1") == "CartPole-v1 needs a package that is not installed: run `pip install swig`"

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_removed_version_is_answered_with_ours(self) -> None:
        assert refusal("HalfCheetah-v2") == (
            "HalfCheetah-v2 is no more: Gymnasium has removed versions 2 and 3. Take mujoco/HalfCheetah."
        )

    def test_fault_g2_missing_atari_has_its_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import gymnasium

        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        registry = gymnasium.registry.items()
        known = {env_id: spec for env_id, spec in registry if not str(spec.entry_point).startswith("ale_py")}
        monkeypatch.setattr(gymnasium, "registry", known)
        assert (
            refusal("ALE/Pong-v5") == "The Atari environment 'ALE/Pong-v5' needs an extra: pip install \"sf-rl[atari]\""
        )

    def test_fault_b20_function_that_cannot_travel_is_refused(self) -> None:
        lock = threading.Lock()
        register_env("Locked", lambda: Toy(name=str(lock)))
        assert refusal("Locked").startswith(
            "The function that makes Locked cannot be sent to the rollout workers: it cannot be pickled ("
        )
        assert "It must not hold locks, open files or processes." in refusal("Locked")

    def test_functions_without_a_module_travel_with_their_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        register_env("Lambda", lambda: Toy(), lambda num_envs: ("many", num_envs))
        source = pickle.loads(pickle.dumps(find_env("Lambda")))
        assert isinstance(source.make(), Toy)
        assert source.vector_factory(3) == ("many", 3)
        monkeypatch.setattr(Toy, "__module__", "__main__")
        monkeypatch.setattr(sys.modules["__main__"], "Toy", Toy, raising=False)
        register_env("Interactive", Toy)
        text = pickle.dumps(find_env("Interactive"))
        monkeypatch.delattr(sys.modules["__main__"], "Toy")
        assert type(pickle.loads(text).make()).__name__ == "Toy"


class TestProbe:
    def test_facts_of_a_known_environment(self) -> None:
        info = probe(find_env("CartPole-v1"))
        assert (info.env_id, info.num_agents) == ("CartPole-v1", 1)
        assert info.observations == {"obs": LeafSpec((4,), "float32")}
        assert info.action == ActionSpec.discrete(2)

    def test_facts_of_two_agents(self) -> None:
        register_env("Two", TwoToys)
        assert probe(find_env("Two")).num_agents == 2

    def test_episodes_that_end_in_every_step_are_fine(self) -> None:
        register_env("Short", Toy)
        probe(find_env("Short", {"terminated": True, "truncated": np.True_}))

    @pytest.mark.parametrize("name", ["reward", "observation", "terminated"])
    def test_a_tensor_that_requires_grad_is_refused_in_one_sentence(self, name: str) -> None:
        import torch

        register_env("Differentiable", Toy)
        value = torch.ones(2 if name == "observation" else (), requires_grad=True)
        with pytest.raises(
            EnvError, match=r"returned a Tensor that NumPy cannot read \(Can't call numpy\(\) on"
        ) as caught:
            probe(find_env("Differentiable", {name: value * 0.5}))
        assert not isinstance(caught.value, EnvCrashed)

    @pytest.mark.parametrize(
        "returned",
        [
            {"observation": np.zeros(2, np.float64)},
            {"observation": [0.0, 0.5]},
            {"reward": 1, "terminated": 0},
            {"reward": np.float32(1), "terminated": np.False_},
            {"reward": np.array([1.0])},
            {"observation": 2, "observation_space": spaces.Discrete(3)},
        ],
    )
    def test_fault_b14_what_converts_without_loss_is_accepted(self, returned: dict[str, Any]) -> None:
        register_env("Loose", Toy)
        probe(find_env("Loose", returned))

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            (
                {"observation": np.zeros(1, np.float32)},
                "Bad returned an observation 'obs' of shape (1,), but its observation space promises (2,). Correct the "
                "space or what reset and step return.",
            ),
            (
                {"observation": np.array([0.0, np.nan])},
                "Bad returned an observation 'obs' that holds NaN: [ 0. nan]. Observations must be finite.",
            ),
            ({"observation": np.ones(2, bool)}, "of dtype bool, which does not fit into float32 as its observation"),
            ({"observation": np.array([np.inf, 0.0])}, "an observation 'obs' that holds infinity: [inf  0.]."),
            (
                {"observation": np.zeros(2, np.float64), "observation_space": spaces.Box(0, 9, (2,), np.uint8)},
                "of dtype float64, which does not fit into uint8 as its observation space promises.",
            ),
            (
                {"observation": 3, "observation_space": spaces.Discrete(3)},
                "an observation 'obs' with the value 3, but its observation space promises categories 0 to 2.",
            ),
            (
                {"observation": {"a": 0}, "observation_space": spaces.Dict({"b": spaces.Discrete(2)})},
                "returned an observation with the keys ['a'], but its observation space has ['b']. Return",
            ),
            (
                {"observation": np.array([1e18, 0.0])},
                "holds infinity: [1.e+18 0.e+00] (anything from 1e+18 counts as infinite). Observations must be",
            ),
            (
                {
                    "observation": np.array([np.inf, 0.0], np.float16),
                    "observation_space": spaces.Box(-1, 1, (2,), np.float16),
                },
                "an observation 'obs' that holds infinity: [inf  0.].",
            ),
            ({"reward": np.nan}, "Bad returned the reward nan from step, expected a finite number."),
            ({"reward": -1e20}, "the reward -1e+20 (anything from 1e+18 counts as infinite) from step, expected"),
            ({"reward": None}, "Bad returned the reward None from step, expected a finite number."),
            (
                {"reward": np.ones(3)},
                "Bad returned the reward array([1., 1., 1.]) from step, expected a finite number.",
            ),
            ({"terminated": "no"}, "Bad returned terminated='no' from step, expected True or False."),
            ({"truncated": np.zeros(2, bool)}, "Bad returned truncated=array([False, False]) from step, expected True"),
            (
                {"step": (np.zeros(2, np.float32), 1.0, False, {})},
                "Bad returned a tuple of 4 values from step, expected the tuple observation, reward, terminated, "
                "truncated, info. Environments for gym before 0.26 need a wrapper",
            ),
            (
                {"reset": np.zeros(2, np.float32)},
                "Bad returned one ndarray from reset, expected the tuple observation, info. Environments for",
            ),
            (
                {"observation_space": spaces.Text(2)},
                "but observations are Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these.",
            ),
            ({"action_space": spaces.Text(2)}, "Bad: The action space is or contains Text"),
            ({"action_space": None}, "Bad: The action space is or contains None, but actions are Discrete, "),
        ],
    )
    def test_fault_b10_broken_promise_is_told_with_both_sides(self, returned: dict[str, Any], message: str) -> None:
        register_env("Bad", Toy)
        assert message in refusal("Bad", **returned)

    @pytest.mark.parametrize(
        ("space", "seen", "told"),
        [
            (spaces.Box(-1, 1, (2,)), [0.0, 1e6], ["'obs' with 1e+06 where its space promises -1 to 1"]),
            (spaces.Box(-1, 1, (2,)), [-3.0, 2.0], ["'obs' with -3 where its space promises -1 to 1"]),
            (spaces.Box(0, 0.7, (2,)), [0.7, 0.1], []),
            (spaces.Box(-np.inf, np.inf, (2,)), [1e6, 0.0], []),
            (spaces.Box(0, 9, (2,), np.uint8), [3, 10], ["'obs' with 10 where its space promises 0 to 9"]),
            (spaces.Box(0, 255, (2,), np.uint8), [3, 255], []),
            (spaces.MultiBinary(2), [0, 2], ["'obs' with 2 where its space promises 0 to 1"]),
            (
                spaces.Dict({"a": spaces.Tuple([spaces.Box(0, 1), spaces.Discrete(3)]), "b": spaces.Box(0, 1)}),
                {"a": (np.array([2.0]), 1), "b": np.array([-5.0])},
                ["'a/0' with 2 where its space promises 0 to 1", "'b' with -5 where its space promises 0 to 1"],
            ),
        ],
        ids=str,
    )
    def test_fault_b11_number_outside_its_bounds_is_told(self, space: Any, seen: Any, told: list[str]) -> None:
        register_env("Far", Toy)
        notes = probe_and_time(find_env("Far", {"observation_space": space, "observation": seen}), 0.0).notes
        assert notes == [
            f"Warning: Far returned an observation {one}. It is taken as it is; correct the bounds, or clip it in the "
            "environment."
            for one in told
        ]

    @pytest.mark.parametrize(
        ("step", "message"),
        [
            (
                ([np.zeros(2)] * 2, [1.0], [False] * 2, [False] * 2, [{}, {}]),
                "Bad returned a list of 1 values from step, expected a list of 2 entries, one for each agent, in every",
            ),
            (
                ([np.zeros(2)] * 2, [1.0] * 2, [True, None], [False] * 2, [{}, {}]),
                "Bad returned terminated=None from step, expected True or False.",
            ),
        ],
    )
    def test_agents_that_do_not_keep_the_protocol(self, step: Any, message: str) -> None:
        register_env("Bad", TwoToys)
        assert message in refusal("Bad", step=step)

    @pytest.mark.parametrize(
        ("call", "named"),
        [("constructor", "the constructor"), ("reset", "reset"), ("step", "step"), ("close", "close")],
    )
    def test_fault_b5_exception_is_blamed_with_the_environments_traceback(self, call: str, named: str) -> None:
        register_env("Bad", Raising)
        message = refusal("Bad", where=call)
        assert message.startswith(
            f"Bad raised Unprintable in {named}. Its traceback:\nTraceback (most recent call last)"
        )
        assert "toys.py" in message
        assert "sf/envs" not in message
        assert message.endswith("Unprintable: <exception str() failed>")

    def test_environment_without_agents_is_refused(self) -> None:
        register_env("NoAgents", NoAgents)
        assert refusal("NoAgents") == "NoAgents has num_agents=0, expected at least 1."

    def test_wrong_argument_is_blamed_on_the_constructor(self) -> None:
        assert "CartPole-v1 raised TypeError in the constructor." in refusal("CartPole-v1", gravitas=9.8)

    def test_fault_b21_instances_that_differ_are_refused_with_both(self) -> None:
        Fickle.instances = 0
        register_env("Fickle", Fickle)
        source = find_env("Fickle")
        info = probe(source)
        with pytest.raises(EnvError) as caught:
            source.make_checked(info)
        assert str(caught.value) == (
            "Fickle is not what it should be. "
            "Expected: 1 agent, observations {obs: float32[2]}, actions choices 0 to 2. "
            "Found: 1 agent, observations {obs: float32[3]}, actions choices 0 to 2. "
            "All environments of a run need the same agents and spaces, and a policy needs those that it was trained "
            "with."
        )
        register_env("Steady", Toy)
        steady = find_env("Steady")
        assert isinstance(steady.make_checked(probe(steady)), Toy)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1"])
def test_wrappers_of_gymnasium_that_only_look_for_a_reset_are_left_out_and_limits_stay(env_id: str) -> None:
    env, names = find_env(env_id).make(), []
    outer = env
    while isinstance(outer, gymnasium.Wrapper):
        names.append(type(outer).__name__)
        outer = outer.env
    assert names == ["TimeLimit"]
    env.reset(seed=0)
    limit = env.spec.max_episode_steps
    env.unwrapped.step = lambda action: (env.observation_space.sample(), 0.0, False, False, {})
    assert [env.step(0)[3] for _ in range(limit)] == [False] * (limit - 1) + [True]


def test_an_environment_without_a_limit_has_no_wrapper_of_gymnasium() -> None:
    gymnasium.register("WithoutLimit-v0", entry_point="gymnasium.envs.classic_control:PendulumEnv")
    try:
        assert not isinstance(find_env("WithoutLimit-v0").make(), gymnasium.Wrapper)
    finally:
        del gymnasium.registry["WithoutLimit-v0"]
