"""Algorithms that learn from fresh batches as a user starts them: training in each mode, and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from sf.errors import ExitCode
from tests.helpers.commands import EXPERIMENT, run, summary_of

ALGORITHMS = {
    "appo": {"target", "num_batches"},
    "ppg": {"head"},
    "pqn": set[str](),
    "rnd": {"random", "predictor", "value", "scale"},
}
SETTINGS = {
    "ppg": '{"phase_batches": 3, "phase_epochs": 1}',
    "pqn": '{"epsilon_fraction": 0}',  # else it follows the length of the run
}
MODES: dict[str, tuple[str, ...]] = {
    "async": (),
    "sync": ("--async_rl=False",),
    "serial": ("--async_rl=False", "--serial_mode=True"),
}
SMALL = (
    "--encoder_mlp_layers", "16", "16", "--num_workers=1", "--num_envs_per_worker=8", "--rollout=16",
    "--num_batches_per_epoch=2", "--num_epochs=2", "--seed=3",
)  # fmt: skip


def train(folder: Path, algorithm: str, *flags: str) -> Any:
    settings = SETTINGS.get(algorithm, "{}")
    return run(
        folder, "--env=CartPole-v1", f"--algorithm={algorithm}", *SMALL, "--algorithm_kwargs", settings, *flags
    )  # fmt: skip


def newest(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = sorted((folder / EXPERIMENT / "checkpoint_p0").glob("checkpoint_*"))[-1].glob("*.safetensors")
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys() if not name.startswith("moment.")}  # noqa: SIM118


@pytest.mark.parametrize(
    ("algorithm", "mode"), [*((name, "serial") for name in ALGORITHMS), ("ppg", "async"), ("rnd", "sync")]
)
def test_it_trains_in_each_mode(algorithm: str, mode: str, tmp_path: Path) -> None:
    done = train(tmp_path, algorithm, *MODES[mode], "--train_for_env_steps=1280")
    assert done.code == ExitCode.FINISHED, done.err
    frames = summary_of(tmp_path)["frames"]
    assert frames == 1280
    saved = newest(tmp_path)
    assert {name.split(".")[1] for name in saved if name.startswith("algorithm.")} == ALGORITHMS[algorithm]
    batches = frames // 128
    phases = batches // 3 if algorithm == "ppg" else 0
    assert int(saved["version"]) == 4 * batches + 6 * phases


@pytest.mark.more
@pytest.mark.parametrize("algorithm", ["appo", "rnd", "pqn"])
def test_a_serial_run_in_two_parts_is_the_one_without_a_stop(algorithm: str, tmp_path: Path) -> None:
    serial = MODES["serial"]
    assert train(tmp_path / "whole", algorithm, *serial, "--train_for_env_steps=1280").code == ExitCode.FINISHED
    for frames in (384, 1280):
        done = train(tmp_path / "parts", algorithm, *serial, f"--train_for_env_steps={frames}")
        assert done.code == ExitCode.FINISHED, done.err
    whole, parts = newest(tmp_path / "whole"), newest(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert [name for name in whole if not torch.equal(whole[name], parts[name])] == []


@pytest.mark.more
@pytest.mark.parametrize("algorithm", ["ppg", pytest.param("rnd", marks=pytest.mark.slow)])
def test_two_learners_share_all_networks(algorithm: str, tmp_path: Path) -> None:
    done = train(tmp_path, algorithm, "--async_rl=False", "--num_learners=2", "--train_for_env_steps=1280")
    assert done.code == ExitCode.FINISHED, done.err
    assert summary_of(tmp_path)["frames"] == 1280


@pytest.mark.more
def test_a_run_that_goes_on_with_a_target_network_begins_with_a_copy_of_its_policy(tmp_path: Path) -> None:
    serial = MODES["serial"]
    assert train(tmp_path, "rnd", *serial, "--train_for_env_steps=384").code == ExitCode.FINISHED
    policy = {name: tensor for name, tensor in newest(tmp_path).items() if name.startswith("policy.")}
    flags = "--algorithm_kwargs", '{"target_every": 100}', "--train_for_env_steps=512"
    done = run(tmp_path, "--env=CartPole-v1", "--algorithm=appo", *SMALL, *flags, *serial)
    assert done.code == ExitCode.FINISHED, done.err
    assert "keeps beside the policy begins anew" in done.out
    saved = newest(tmp_path)
    for name, tensor in policy.items():
        assert torch.equal(saved[name.replace("policy.", "algorithm.target.", 1)], tensor), name
