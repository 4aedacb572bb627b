"""Simulators in tensors: what they promise, how episodes end in them, and whole runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sf_envs.carts import Carts
from sf_envs.torch_vector import FromTorchVector
from sf_envs.vec_env import FromVecEnv
from torch import Tensor

import sf
from sf.envs import find_env, probe
from sf.envs.registry import register_env
from sf.envs.tensor_batches import ManyTensors, OneTensor
from sf.envs.tensors import CheckedTensors
from sf.envs.vector_stepping import VectorBatch
from sf.errors import EnvError
from tests.helpers.commands import run

LENGTHS = 3, 2
"""Steps of an episode of each copy; the second copy is truncated."""


class Counting:
    """Two copies that count their steps; what a step returns can be replaced."""

    observation_space: gymnasium.Space[Any] = spaces.Box(-1.0, 1000.0, (1,))
    action_space: gymnasium.Space[Any] = spaces.Discrete(2)

    def __init__(self, num_envs: int = 2, final: bool = True, **returned: Any) -> None:
        self.num_envs, self._final, self._returned = num_envs, final, returned
        self._counts = torch.zeros(num_envs, 1)
        """Returned as it is and overwritten in the next step, as simulators do."""
        self._steps, self._total = torch.zeros(num_envs, dtype=torch.int64), 0

    def reset(self, seed: int | None) -> Any:
        self._counts.zero_()
        self._steps.zero_()
        return self._returned.get("first", self._counts)

    def step(self, actions: Tensor) -> Any:
        self._steps += 1
        self._total += 1
        self._counts.copy_(self._steps[:, None])
        final = self._counts.clone()
        over = self._steps == torch.tensor([LENGTHS[row % 2] for row in range(self.num_envs)])
        is_odd = torch.arange(self.num_envs) % 2 == 1
        self._steps[over] = 0
        self._counts[over] = 0
        extras = {"metrics": {"distance": final[:, 0] * 10, "speed/mean": final[:, 0]}}
        results = {
            "observations": self._counts, "rewards": final[:, 0], "terminated": over & ~is_odd,
            "truncated": over & is_odd, "extras": extras | ({"final_observations": final} if self._final else {}),
        } | self._returned  # fmt: skip
        if "result" in results:
            return results["result"]
        return tuple(results[name] for name in ("observations", "rewards", "terminated", "truncated", "extras"))


register_env("test/Counting", make_tensors=Counting)


def batch(**kwargs: Any) -> tuple[VectorBatch, dict[str, Any], Any]:
    """Two copies as a rollout worker steps them, with the rooms of their observations and final ones."""
    source = find_env("test/Counting", kwargs)
    info = probe(find_env("test/Counting"))
    finals, has_final = {"obs": np.zeros((2, 1), np.float32)}, np.zeros(2, bool)
    return VectorBatch(source, info, [0, 1], finals, has_final, "scale"), finals, has_final


def test_episodes_begin_anew_in_the_same_step_and_final_observations_are_kept() -> None:
    envs, finals, has_final = batch()
    seen, rewards = {"obs": np.zeros((2, 1), np.float32)}, np.zeros(2, np.float32)
    envs.reset(seen)
    table = []
    for _ in range(4):
        has_final[...] = False
        ended = envs.step(np.zeros(2, np.int64), seen, rewards)
        table.append((
            seen["obs"][:, 0].tolist(), rewards.tolist(), [(one.row, one.terminated, one.truncated) for one in ended],
            finals["obs"][1, 0] if has_final[1] else None,
        ))  # fmt: skip
    assert table == [
        ([1, 1], [1, 1], [], None),
        ([2, 0], [2, 2], [(1, False, True)], 2),
        ([0, 1], [3, 1], [(0, True, False)], None),
        ([1, 0], [1, 2], [(1, False, True)], 2),
    ]


def test_without_final_observations_a_time_limit_has_the_value_of_the_observation_before_and_says_so_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    envs, finals, has_final = batch(final=False)
    seen, rewards = {"obs": np.zeros((2, 1), np.float32)}, np.zeros(2, np.float32)
    envs.reset(seen)
    kept = []
    for _ in range(4):
        has_final[...] = False
        envs.step(np.zeros(2, np.int64), seen, rewards)
        kept += [finals["obs"][1, 0]] * bool(has_final[1])
    assert kept == [1, 1], "and not the 2 of the step that ends the episode"
    assert capfd.readouterr().out.count("test/Counting gives no final_observations.") == 1


def test_metrics_of_an_episode_come_with_its_end() -> None:
    envs, *_ = batch()
    seen, rewards = {"obs": np.zeros((2, 1), np.float32)}, np.zeros(2, np.float32)
    envs.reset(seen)
    ended = [end for _ in range(3) for end in envs.step(np.zeros(2, np.int64), seen, rewards)]
    assert [(end.row, end.info["metrics"]) for end in ended] == [
        (1, {"distance": 20.0, "speed/mean": 1.5}),
        (0, {"distance": 30.0, "speed/mean": 2.0}),
    ]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "rows": ({"observations": torch.zeros(3, 1)}, "float32[3, 1], expected a first dimension of num_envs=2"),
    "shape": ({"observations": torch.zeros(2, 2)}, "float32[2, 2], expected float32[2, 1]"),
    "dtype": ({"observations": torch.zeros(2, 1, dtype=torch.float64)}, "float64[2, 1], expected float32[2, 1] as"),
    "no tensor": ({"observations": np.zeros((2, 1))}, "of type ndarray, expected a torch.Tensor"),
    "rewards": ({"rewards": torch.zeros(2, 1)}, "rewards torch.float32[2, 1] from step, expected [2]"),
    "flags": ({"truncated": torch.zeros(2)}, "truncated"),
    "extras": ({"extras": None}, "extras of type NoneType from step, expected a dict"),
    "tuple": (
        {"result": (torch.zeros(2, 1), torch.zeros(2))},
        "of type tuple from step, expected a tuple of five: (observations, rew",
    ),
    "metrics": ({"extras": {"metrics": {"a/sum": torch.zeros(3)}}}, "metric 'a/sum' from step"),
    "final": ({"extras": {"final_observations": torch.zeros(1, 1)}}, "extras['final_observations']"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_breaks_the_protocol_is_named(name: str) -> None:
    returned, message = WRONG[name]
    envs, *_ = batch(**returned)
    seen, rewards = {"obs": np.zeros((2, 1), np.float32)}, np.zeros(2, np.float32)
    envs.reset(seen)
    with pytest.raises(EnvError) as caught:
        [envs.step(np.zeros(2, np.int64), seen, rewards) for _ in range(2)]
    assert message in str(caught.value)
    assert "test/Counting" in str(caught.value)


def test_what_is_no_simulator_is_refused() -> None:
    with pytest.raises(EnvError, match="has no 'num_envs', expected num_envs, observation_space"):
        ManyTensors(object())  # type: ignore[arg-type]
    with pytest.raises(EnvError, match=r"Expected make, with make_vec if there is one, or make_tensors alone"):
        register_env("test/Neither")
    with pytest.raises(EnvError, match="object has no 'num_envs', expected num_envs, num_actions"):
        FromVecEnv(object())
    with pytest.raises(EnvError, match="object has no num_envs, single_observation_space, single_action_space, reset"):
        FromTorchVector(object())
    with pytest.raises(
        EnvError, match=r"has autoreset_mode=AutoresetMode\.NEXT_STEP, expected AutoresetMode\.SAME_STEP"
    ):
        FromTorchVector(gymnasium.make_vec("CartPole-v1", 2))


def test_carts_are_those_of_gymnasium() -> None:
    """The same equations, limits and rewards, but in float32."""
    carts, ours = Carts(8), ManyTensors(Carts(8))
    assert carts.observation_space.shape == (4,)
    first = ours.reset(seed=3)[0].copy()
    singles: list[Any] = [gymnasium.make("CartPole-v1").unwrapped for _ in range(8)]
    for single, state in zip(singles, first, strict=True):
        single.reset()
        single.state = tuple(map(float, state))
    going, random, ends = set(range(8)), np.random.default_rng(0), 0
    while going:
        actions = random.integers(0, 2, 8)
        seen, rewards, terminated, _, _ = ours.step(actions)
        assert rewards.tolist() == [1.0] * 8
        for row in sorted(going):
            theirs, _, over, _, _ = singles[row].step(int(actions[row]))
            assert over == terminated[row]
            if not over:
                np.testing.assert_allclose(seen[row], theirs, rtol=1e-4, atol=1e-5)
            going -= {row} if over else set()
            ends += over
    assert ends == 8


def test_a_single_copy_is_an_ordinary_environment() -> None:
    env = OneTensor(Carts(1, max_episode_steps=5))
    first, _ = env.reset(seed=0)
    for step in range(1, 6):
        seen, reward, terminated, truncated, _ = env.step(1)
        assert (reward, terminated, truncated) == (1.0, False, step == 5)
    again, _ = env.reset()
    assert np.abs(again).max() <= 0.05 < np.abs(seen).max(), "the final observation, then the first one"
    np.testing.assert_array_equal(env.reset(seed=0)[0], first)


class Sighted:
    """One copy per row that pays for the action which a nested observation names; episodes of 8 steps."""

    observation_space: gymnasium.Space[Any] = spaces.Dict(
        {"sign": spaces.Box(0.0, 1.0, (2,)), "more": spaces.Dict({"noise": spaces.Box(-9.0, 9.0, (1,))})}
    )
    action_space: gymnasium.Space[Any] = spaces.Discrete(2)

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self._steps = num_envs, 0
        self._random = torch.Generator().manual_seed(0)

    def _see(self) -> Mapping[str, Any]:
        self._sign = torch.randint(0, 2, (self.num_envs,), generator=self._random)
        noise = torch.randn(self.num_envs, 1, generator=self._random).clamp(-9, 9)
        return {"sign": torch.nn.functional.one_hot(self._sign, 2).float(), "more": {"noise": noise}}

    def reset(self, seed: int | None) -> Any:
        return self._see()

    def step(self, actions: Tensor) -> Any:
        rewards = (actions == self._sign).float()
        self._steps += 1
        over = torch.full((self.num_envs,), self._steps % 8 == 0)
        return self._see(), rewards, over, torch.zeros_like(over), {}


@pytest.mark.more
def test_a_serial_run_learns_from_a_nest_of_tensors(tmp_path: Path) -> None:
    register_env("test/Sighted", make_tensors=Sighted)
    result = sf.train(
        "test/Sighted", train_dir=str(tmp_path), serial_mode=True, num_envs_per_worker=64, rollout=16, seed=1,
        train_for_env_steps=20_000,
    )  # fmt: skip
    assert result.metrics["reward/reward"][-1][1] > 7.0, "of 8; random play has 4"


@pytest.mark.more
def test_a_run_with_processes_takes_one_simulator_and_reaches_its_end(tmp_path: Path) -> None:
    flags = "--env=sf/Carts-v0", "--num_envs_per_worker=64", "--rollout=16", "--train_for_env_steps=4096"
    finished = run(tmp_path, *flags)
    assert finished.code == 0, finished.err
    assert "--num_workers=1 --worker_num_splits=1" in finished.out
    assert "The run has ended: train_for_env_steps reached" in finished.out


def test_the_device_is_that_of_observations() -> None:
    tensors = CheckedTensors(Counting())
    tensors.reset(0)
    tensors.device = torch.device("meta")
    tensors.metrics({"metrics": {"speed": torch.zeros(2)}})
    assert tensors.device.type == "meta", "a metric on another device changes nothing"
    tensors.step(torch.zeros(2))
    assert tensors.device.type == "cpu"


def test_a_single_copy_gets_a_seed_and_a_way_of_drawing_where_it_asks() -> None:
    made: list[dict[str, Any]] = []

    def asks(num_envs: int, seed: int, render_mode: str | None = None) -> Carts:
        made.append({"seed": seed, "render_mode": render_mode})
        return Carts(num_envs)

    register_env("test/Asks", make_tensors=asks)
    assert find_env("test/Asks").make("rgb_array").render_mode == "rgb_array"
    assert made == [{"seed": 0, "render_mode": "rgb_array"}]
    with pytest.raises(EnvError, match=r"sf/Carts-v0 cannot be drawn: it has no render\(\)"):
        find_env("sf/Carts-v0").make("rgb_array").render()


def test_a_class_of_a_module_is_named_on_the_command_line() -> None:
    source = find_env("sf_envs.carts:Carts", {"max_episode_steps": 7})
    assert source.in_tensors
    many = source.make_vector(3, seed=0)
    assert (many.num_envs, many.env.max_episode_steps) == (3, 7)


class VecEnv:
    """The shape that rsl_rl has: it resets by itself and gives no final observations."""

    num_envs, num_actions = 4, 2

    def __init__(self) -> None:
        self.steps = 0

    def get_observations(self) -> Any:
        return torch.full((4, 3), float(self.steps)), {}

    def reset(self) -> Any:
        self.steps = 0
        return self.get_observations()

    def step(self, actions: Tensor) -> Any:
        assert actions.shape == (4, 2)
        self.steps += 1
        dones = torch.tensor([0, 1, 1, 0])
        extras = {"time_outs": torch.tensor([False, True, False, True]), "log": {"height": torch.arange(4.0), "all": 1}}
        return self.get_observations()[0], torch.ones(4), dones, extras


def test_a_vector_environment_of_isaac_lab_is_a_simulator() -> None:
    many = ManyTensors(FromVecEnv(VecEnv()))
    assert many.single_observation_space == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert many.single_action_space == spaces.Box(-1.0, 1.0, (2,), np.float32)
    many.reset()
    _, rewards, terminated, truncated, infos = many.step(np.zeros((4, 2), np.float32))
    assert rewards.tolist() == [1.0] * 4
    assert (terminated.tolist(), truncated.tolist()) == ([False, False, True, False], [False, True, False, False])
    assert infos["final_obs"][1].tolist() == [0.0] * 3, "the one before the step"
    assert {name: values.tolist() for name, values in infos["metrics"].items()} == {"height": [0.0, 1.0, 2.0, 3.0]}


class TorchVector:
    """The shape that ManiSkill has: final observations come in steps that end an episode."""

    num_envs = 3
    single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    single_action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self) -> None:
        self.steps, self.is_closed = 0, False
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None) -> Any:
        self.seeds.append(seed)
        return torch.zeros(3, 2), {}

    def step(self, actions: Tensor) -> Any:
        assert isinstance(actions, Tensor)
        self.steps += 1
        seen, none = torch.full((3, 2), float(self.steps)), torch.zeros(3, dtype=torch.bool)
        if self.steps < 2:
            return seen, torch.ones(3), none, none, {"success": none}
        over = torch.tensor([False, True, True])
        infos = {"final_observation": seen.clone(), "final_info": {"success": torch.tensor([False, False, True])}}
        seen[over] = 0
        return seen, torch.ones(3), torch.tensor([False, False, True]), torch.tensor([False, True, False]), infos

    def close(self) -> None:
        self.is_closed = True


def test_a_vector_environment_of_maniskill_is_a_simulator() -> None:
    many = ManyTensors(FromTorchVector(theirs := TorchVector()))
    many.reset(seed=5)
    assert theirs.seeds == [5]
    first = many.step(np.zeros((3, 2), np.float32))
    assert not first[2].any()
    seen, _, terminated, truncated, infos = many.step(np.zeros((3, 2), np.float32))
    assert (terminated.tolist(), truncated.tolist()) == ([False, False, True], [False, True, False])
    assert seen[:, 0].tolist() == [2.0, 0.0, 0.0]
    assert infos["final_obs"][1].tolist() == [2.0, 2.0]
    assert infos["metrics"]["success"].tolist() == [0.0, 0.0, 1.0]
    many.close()
    assert theirs.is_closed
