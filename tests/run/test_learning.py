"""Training to a known score; `make test-slow`."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from tests.helpers.commands import run

pytestmark = pytest.mark.slow

MODES = {"async": (), "sync": ("--async_rl=False",), "serial": ("--serial_mode=True",)}


def reaches(path: Path, env: str, target: float, frames: int, *flags: str) -> int:
    """The mean return of 100 episodes gets to `target` within `frames`; after how many it does."""
    limits = (f"--stop_at_reward={target}", f"--train_for_env_steps={frames}")
    finished = run(path, f"--env={env}", *limits, *flags, timeout_s=900)
    assert finished.code == 0, finished.err
    summary = json.loads((path / "train_dir/default_experiment/summary.json").read_text())
    assert summary["exit_reason"] == "stop_at_reward reached", summary["policies"]
    return int(summary["frames"])


@pytest.mark.parametrize("mode", MODES)
def test_cartpole_reaches_475_within_500k_steps(tmp_path: Path, mode: str) -> None:
    """In the median of three seeds; one of eight falls back shortly before and takes 700,000."""
    frames = [
        reaches(tmp_path / str(seed), "CartPole-v1", 475, 1_000_000, *MODES[mode], f"--seed={seed}")
        for seed in (1, 2, 3)
    ]
    assert statistics.median(frames) <= 500_000, frames


def test_pendulum_reaches_minus_250(tmp_path: Path) -> None:
    reaches(tmp_path, "Pendulum-v1", -250, 2_000_000, "--seed=1")


def test_cnn_solves_an_image_environment(tmp_path: Path) -> None:
    reaches(tmp_path, "sf/CatchPixels-v0", 0.95, 1_000_000, "--seed=1", *CATCH)


CATCH = ("--encoder_conv_mlp_layers", "64")


def test_vtrace_learns_as_well(tmp_path: Path) -> None:
    reaches(tmp_path, "CartPole-v1", 475, 700_000, "--with_vtrace=True", "--seed=1")


@pytest.mark.parametrize("env", ["Acrobot-v1", "MountainCarContinuous-v0", "LunarLander-v3", "MountainCar-v0"])
def test_environments_run_without_further_flags(tmp_path: Path, env: str) -> None:
    finished = run(tmp_path, f"--env={env}", "--train_for_env_steps=20000")
    assert finished.code == 0, finished.err


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_memory_solves_what_needs_one(tmp_path: Path, kind: str) -> None:
    reaches(tmp_path, "sf/Remember-v0", 0.95, 1_000_000, "--use_rnn=True", f"--rnn_type={kind}", "--seed=1")


def test_without_memory_the_cue_is_guessed(tmp_path: Path) -> None:
    finished = run(tmp_path, "--env=sf/Remember-v0", "--train_for_env_steps=200000", "--seed=1", timeout_s=300)
    assert finished.code == 0, finished.err
    summary = json.loads((tmp_path / "train_dir/default_experiment/summary.json").read_text())
    assert 0.1 < summary["policies"][0]["reward"] < 0.4, "one of four cues"


def test_masked_choices_learn_the_shortest_ways(tmp_path: Path) -> None:
    reaches(tmp_path, "sf/Couriers-v0", 1.85, 1_500_000, "--seed=1")


@pytest.mark.parametrize("env", ["CartPole-v1", "sf/Couriers-v0"])
def test_any_action_space_learns_with_memory(tmp_path: Path, env: str) -> None:
    target = {"CartPole-v1": 400, "sf/Couriers-v0": 1.7}[env]
    reaches(tmp_path, env, target, 1_500_000, "--use_rnn=True", "--seed=1")
