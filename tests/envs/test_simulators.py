"""Simulators of other packages, where they are installed: `make test-simulators`.

Each in a process of its own: JAX has threads, and a process with threads must not fork.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT, run

COMPARED = """
import json, gymnasium, numpy as np
from sf.envs.tensor_batches import ManyTensors
from sf_envs.simulators import gymnax
many, rng, length, differences = ManyTensors(gymnax("CartPole-v1", 8, 30)), np.random.default_rng(0), np.zeros(8), []
first = many.reset(seed=1)[0].copy()
again = many.reset(seed=1)[0].copy()
singles = [gymnasium.make("CartPole-v1").unwrapped for _ in range(8)]
def put(row, state):
    singles[row].reset()
    singles[row].state = tuple(map(float, state))
for row in range(8):
    put(row, again[row])
ends, wrong = {"terminated": 0, "truncated": 0}, 0
for _ in range(200):
    pole = np.array([single.state[2:] for single in singles]) @ [1.0, 0.5]
    actions = np.where(rng.random(8) < 0.4, pole > 0, rng.integers(0, 2, 8)).astype(np.int32)
    seen, rewards, terminated, truncated, infos = many.step(actions)
    length += 1
    for row in range(8):
        theirs, _, over, _, _ = singles[row].step(int(actions[row]))
        is_cut = bool(length[row] == 30 and not over)
        wrong += (bool(terminated[row]), bool(truncated[row])) != (bool(over), is_cut)
        last = infos["final_obs"][row] if truncated[row] else seen[row]
        if not terminated[row]:
            differences.append(float(np.abs(last - theirs).max()))
        if over or is_cut:
            ends["truncated" if is_cut else "terminated"] += 1
            length[row] = 0
            put(row, seen[row])
print(json.dumps({"same": bool((first == again).all()), "wrong": wrong, "most": max(differences), **ends}))
"""
"""Carts of gymnax beside those of Gymnasium, with the same states and actions."""

RESTORED = """
import sys, torch
from sf_envs import simulators
family, _, name = sys.argv[1].partition("/")
one, other = (getattr(simulators, family)(name, 4) for _ in range(2))
def drive(simulator, number):
    generator, seen = torch.Generator().manual_seed(number), []
    for _ in range(number):
        actions = torch.zeros(4, *simulator.action_space.shape, dtype=getattr(torch, simulator.action_space.dtype.name))
        actions.random_(0, 2, generator=generator)
        observations, rewards, terminated, truncated, _ = simulator.step(actions)
        seen += [observations.double().flatten(1), rewards[:, None], terminated[:, None], truncated[:, None]]
    return torch.cat([part.double() for part in seen], 1)
one.reset(1)
other.reset(2)
drive(one, 7)
saved = {name: tensor.clone() for name, tensor in one.save_state().items()}
expected = drive(one, 60)
assert not torch.equal(drive(other, 60), expected)
other.restore_state(saved)
assert torch.equal(drive(other, 60), expected)
try:
    other.restore_state({"0": saved["0"]})
except Exception as error:
    print(error)
"""
"""A simulator that is brought to where another one was does what that one did."""


def needs(package: str) -> pytest.MarkDecorator:
    """Leaves a test out where a package is not installed."""
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"no {package}")


@pytest.mark.parametrize(
    "env",
    [
        pytest.param("gymnax/CartPole-v1", marks=needs("gymnax")),
        pytest.param("gymnax/Breakout-MinAtar", marks=needs("gymnax")),
        pytest.param("brax/inverted_pendulum", marks=needs("brax")),
        pytest.param("jumanji/Snake-v1", marks=needs("jumanji")),
    ],
)
def test_a_simulator_of_jax_goes_on_where_it_was_saved(env: str) -> None:
    command = [sys.executable, "-c", RESTORED, env]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "The saved state has other arrays than the simulator."


@needs("gymnax")
def test_carts_of_gymnax_are_those_of_gymnasium_with_final_observations(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPARED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["same"], "the seed of a reset decides"
    assert found["wrong"] == 0
    assert found["most"] < 1e-4
    assert min(found["terminated"], found["truncated"]) >= 5


ENVIRONMENTS = [
    pytest.param(env, marks=needs(package))
    for env, package in (
        ("gymnax/CartPole-v1", "gymnax"),
        ("gymnax/Breakout-MinAtar", "gymnax"),
        ("brax/inverted_pendulum", "brax"),
        ("vmas/balance", "vmas"),
        ("craftax/Craftax-Classic-Symbolic-v1", "craftax"),
        ("jumanji/Game2048-v1", "jumanji"),
        ("playground/CartpoleBalance", "mujoco_playground"),
    )
]


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_a_run_and_its_evaluation(env: str, tmp_path: Path) -> None:
    sizes = "--num_envs_per_worker=32", "--rollout=16", "--train_for_env_steps=2048", "--serial_mode=True"
    finished = run(tmp_path, f"--env={env}", *sizes, "--max_episode_steps=50", timeout_s=900)
    assert finished.code == 0, finished.err
    evaluated = run(tmp_path, "default_experiment", "--num_episodes=4", module="sf.cli.evaluate", timeout_s=900)
    assert evaluated.code == 0, evaluated.err


@needs("gymnax")
def test_a_name_and_a_parameter_that_gymnax_does_not_have(tmp_path: Path) -> None:
    name = run(tmp_path, "--env=gymnax/CartPol", timeout_s=120)
    assert "There is no environment of gymnax 'CartPol'. Did you mean gymnax/CartPole-v1?" in name.err
    parameter = run(tmp_path, "--env=gymnax/CartPole-v1", '--env_kwargs={"gravty": 1.0}', timeout_s=120)
    assert "gymnax/CartPole-v1 has no parameter 'gravty', expected one of force_mag, gravity, " in parameter.err


STAGGERED = """
import torch
from sf_envs.simulators import vmas
simulator = vmas("balance", 3, max_episode_steps=100)
simulator.reset(seed=0)
simulator._steps[2] = 99
actions = torch.zeros(3, *simulator.action_space.shape)
seen, _, terminated, truncated, extras = simulator.step(actions)
own = torch.cat([simulator._env.scenario.observation(agent) for agent in simulator._env.agents], 1)
assert truncated.tolist() == [False, False, True] and not terminated.any()
assert torch.equal(seen[2], own[2]), "the first observation of its own copy"
assert not torch.equal(seen[2], own[0])
assert torch.equal(seen[:2], extras["final_observations"][:2])
"""


@needs("vmas")
def test_a_copy_of_vmas_that_begins_anew_shows_its_own_observation() -> None:
    done = subprocess.run([sys.executable, "-c", STAGGERED], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
