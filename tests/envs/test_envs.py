"""Environments: found by id, and made in any process."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

from sf.envs import EnvSource, find_env, probe, register_env, registry
from sf.envs.suggestions import unknown_name
from sf.errors import EnvError
from tests.environments.toys import Toy, TwoToys

pytestmark = pytest.mark.usefixtures("clean_registries")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Writes a module that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


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


def four_carts() -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    return gymnasium.make_vec("CartPole-v1", num_envs=4)


def test_several_copies_in_place_of_one_environment_are_refused() -> None:
    register_env("FourCarts", four_carts)
    assert refusal("FourCarts") == (
        "FourCarts made CartPoleVectorEnv of 4 environments, expected one environment, because sf makes and steps "
        "copies itself. Give the class or function that makes one. Copies that step faster at once may come beside it, "
        "as make_vec of sf.register_env."
    )
