"""A run that has learned all its frames says so before anything is started; all others are left to the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sf.config import Config
from sf.run.finished import note_on_finished
from sf.run.supervisor import train
from tests.helpers.checkpoints import flip_bit
from tests.helpers.lab import make_config


def config_in(path: Path, frames: int = 200, env: str = "CartPole-v1", behavior: str = "resume") -> Config:
    settings = {"serial_mode": True, "num_envs_per_worker": 4, "rollout": 16, "restart_behavior": behavior}
    return make_config(env, train_dir=str(path), train_for_env_steps=frames, **settings)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained")
    train(config_in(path))
    return path


def test_the_sentence_says_what_was_found_and_what_to_change(trained: Path) -> None:
    frames = json.loads((trained / "default_experiment" / "summary.json").read_text())["frames"]
    assert note_on_finished(config_in(trained, frames + 1)) is None
    assert note_on_finished(config_in(trained, frames)) == (
        f"{frames} frames were learned before in {trained / 'default_experiment'}, and --train_for_env_steps={frames} "
        "counts them, so nothing was started. Raise it to go on, take another --experiment, or begin anew with "
        "--restart_behavior=restart."
    )


def test_another_start_is_no_business_of_it(trained: Path, tmp_path: Path) -> None:
    assert note_on_finished(config_in(tmp_path)) is None, "nothing is there"
    assert note_on_finished(config_in(trained, env="Acrobot-v1")) is None, "which is refused with a sentence of its own"
    assert note_on_finished(config_in(trained, behavior="restart")) is None
    config = config_in(trained)
    assert note_on_finished(replace(config, run=replace(config.run, train_for_env_steps=None))) is None
    assert note_on_finished(replace(config, run=replace(config.run, num_policies=2))) is None
    assert note_on_finished(replace(config, learner=replace(config.learner, algorithm="appo"))) is None
    assert note_on_finished(replace(config, model=replace(config.model, encoder="module:Mine"))) is None


DAMAGE: dict[str, Callable[[Path], object]] = {
    "killed": lambda run: (run / "summary.json").unlink(),
    "stopped": lambda run: (run / "summary.json").write_text('{"exit_code": 130}'),
    "no object": lambda run: (run / "summary.json").write_text("[0]"),
    "config of another program": lambda run: (run / "config.json").write_text('{"run": 3}'),
    "damaged": lambda run: flip_bit(next((run / "checkpoint_p0").glob("checkpoint_*/tensors.safetensors")), 100),
    "no checkpoint": lambda run: shutil.rmtree(run / "checkpoint_p0"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_did_not_end_well_is_left_to_the_run(trained: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(trained, tmp_path / "copy")
    DAMAGE[damage](tmp_path / "copy" / "default_experiment")
    assert note_on_finished(config_in(tmp_path / "copy")) is None
