"""Runs and policies that released versions have written: this version goes on with them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from sf.cli.train import main
from sf.errors import ExitCode
from sf.policy import load_policy

RELEASED = Path(__file__).parents[1] / "released"
VERSIONS = sorted(path.name for path in RELEASED.iterdir())
SAVED = "checkpoint_000000064_512"
FLAGS = (
    "--env=CartPole-v1", "--experiment=run", "--async_rl=False", "--encoder_mlp_layers", "8", "--num_workers=1",
    "--num_envs_per_worker=4", "--worker_num_splits=1", "--rollout=32", "--batch_size=64", "--num_batches_per_epoch=2",
)  # fmt: skip
"""With these each run began."""


def test_each_released_version_has_its_files() -> None:
    changes = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    assert sorted(re.findall(r"^## (\d+\.\d+\.\d+)", changes, re.MULTILINE)) == VERSIONS


@pytest.mark.more
@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_goes_on(version: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(RELEASED / version / "run", tmp_path / "run")
    assert main([*FLAGS, f"--train_dir={tmp_path}", "--train_for_env_steps=1024"]) == ExitCode.FINISHED
    assert f"{SAVED} (policy_version 64, 512 frames)" in capfd.readouterr().out
    assert json.loads((tmp_path / "run/summary.json").read_text())["frames"] == 1024


@pytest.mark.parametrize("version", VERSIONS)
def test_a_policy_is_loaded(version: str) -> None:
    saved, of_run = load_policy(RELEASED / version / "policy"), load_policy(RELEASED / version / "run")
    variables = saved.variables()
    assert sum(value.numel() for value in variables.values()) > 50
    for name, value in of_run.variables().items():
        assert torch.equal(value, variables[name]), name
