"""How runs end that lose somebody at the end, and what the next one goes on from."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from sf.callbacks import Callbacks
from sf.learner.update import Update
from sf.supervisor import train
from tests.commands import run, running
from tests.lab import make_config

EXPERIMENT = Path("train_dir/default_experiment")
CARTPOLE = ("--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=4", "--seed=1")


def test_fault_a8_learner_killed_while_the_run_ends_is_told(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        command.wait_for_text("Fps is")
        (learner,) = command.named("sf-learner")
        learner.suspend()
        command.process.terminate()
        time.sleep(1.0)
        learner.kill()
        finished = command.finish()
    assert finished.code == 7
    assert re.search(r"learner-0 \(pid \d+\) was killed by SIGKILL without being told to", finished.err)
    summary = json.loads((tmp_path / EXPERIMENT / "summary.json").read_text())
    assert summary["exit_code"] == 7


def test_fault_d2_summary_has_the_code_of_the_command(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        command.wait_for_text("Fps is")
        shutil.rmtree(tmp_path / EXPERIMENT / "checkpoint_p0")
        (tmp_path / EXPERIMENT / "checkpoint_p0").touch()  # where there should be a directory
        command.process.terminate()
        assert command.finish().code == 4
    summary = json.loads((tmp_path / EXPERIMENT / "summary.json").read_text())
    assert summary["exit_code"] == 4
    assert "final checkpoint was not written" in summary["exit_reason"]


@pytest.mark.parametrize("kind", ["best", "milestones"])
def test_fault_d4_run_goes_on_from_what_there_is(tmp_path: Path, kind: str) -> None:
    assert run(tmp_path, *CARTPOLE, "--train_for_env_steps=2000").code == 0
    checkpoints = tmp_path / EXPERIMENT / "checkpoint_p0"
    (newest,) = checkpoints.glob("checkpoint_*")
    (checkpoints / kind).mkdir()
    newest.rename(checkpoints / kind / newest.name)
    resumed = run(tmp_path, *CARTPOLE, "--train_for_env_steps=4000")
    assert resumed.code == 0, resumed.err
    assert f"Resumed from {checkpoints / kind / newest.name} (policy_version" in resumed.out
    summary = json.loads((tmp_path / EXPERIMENT / "summary.json").read_text())
    assert 4000 <= summary["frames"] < 2 * 4000
    assert summary["new_frames"] < summary["frames"] - 1500


class Poisoned(RuntimeError):
    pass


@pytest.mark.parametrize("async_rl", [False, True])
def test_serial_run_that_fails_within_an_iteration_goes_on_from_before_it(
    tmp_path: Path, async_rl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"serial_mode": True, "num_envs_per_worker": 8, "rollout": 16, "async_rl": async_rl}
    settings |= {"num_batches_per_epoch": 2, "batch_size": 64, "train_dir": str(tmp_path)}
    train(make_config(train_for_env_steps=1000, **settings))
    right = Update._step

    def fails_in_the_middle(update: Update, *arguments: Any) -> bool:
        if update.version % 2 == 1 and update.version > 30:
            raise Poisoned("in the middle of a dataset")
        return right(update, *arguments)

    longer = make_config(train_for_env_steps=5000, train_for_seconds=60, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(Update, "_step", fails_in_the_middle)
        with pytest.raises(Poisoned):
            train(longer)
    frames: list[int] = []
    train(longer, Callbacks(on_iteration=lambda iteration: frames.append(iteration.frames)))
    assert frames[-1] >= 5000


def test_fault_b5_first_look_sees_a_death_behind_a_fork(tmp_path: Path) -> None:
    began = time.monotonic()
    finished = run(tmp_path, "--env=tests.fault_envs:ForksAndDies-v0")
    assert finished.code == 3, finished.err
    assert "its process was killed by SIGABRT" in finished.err
    assert time.monotonic() - began < 10
