"""Whole runs whose simulator steps in tensors: in turn, by two threads, on another device, and where it breaks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.envs.registry import register_env
from sf.errors import ExitCode
from tests.envs.test_tensors import Counting
from tests.helpers.commands import ROOT, run, summary_of
from tests.nets.test_device import can_emulate
from tests.tensors.test_tensor_worker import ROWS

THREE_STEPS = ("--num_batches_per_epoch=3", "--batch_size=256", "--num_epochs=1", "--strict=True")
A2C = ("--num_batches_per_epoch=1", "--num_epochs=1", "--strict=True")


@pytest.mark.more
@pytest.mark.parametrize("flags", [(), ("--use_rnn=True",)])
def test_whole_run_in_tensors_has_ratios_of_one(tmp_path: Path, flags: tuple[str, ...]) -> None:
    line = "--env=sf/Carts-v0", "--serial_mode=True", "--num_envs_per_worker=16", "--rollout=16", *A2C, *flags
    finished = run(tmp_path, *line, "--train_for_env_steps=8000")
    assert finished.code == 0, finished.err
    assert "by one process and in turn" in finished.out
    assert summary_of(tmp_path)["frames"] >= 8000
    assert "max 0.0 (expected: avg 0, max 0)" in finished.out


@pytest.mark.more
def test_whole_run_that_overlaps_is_at_most_one_dataset_behind(tmp_path: Path) -> None:
    """Slots hold two datasets of three optimizer steps, so that a transition is learned with a lag of 5 at most."""
    line = "--env=sf/Carts-v0", "--vectorization=tensors", "--num_envs_per_worker=16", "--rollout=16", *THREE_STEPS
    finished = run(tmp_path, *line, "--train_for_env_steps=40000")
    assert finished.code == 0, finished.err
    assert "sf/Carts-v0 is stepped, acted in and learned from on cpu, by two threads" in finished.out
    assert "Expected policy lag: min 3, avg 4, max 5" in finished.out
    summary = summary_of(tmp_path)
    assert 0 < summary["policies"][0]["lag_of_run"]["max"] <= 5
    resumed = run(tmp_path, *line, "--train_for_env_steps=50000")
    assert resumed.code == 0, resumed.err
    assert 50_000 <= summary_of(tmp_path)["frames"] < 51_000


class Failing(Counting):
    """Raises in its third step, or hangs there."""

    def __init__(self, num_envs: int, hangs: bool = False) -> None:
        super().__init__(num_envs)
        self._hangs = hangs

    def step(self, actions: torch.Tensor) -> Any:
        if self.num_envs == ROWS and self._total == 2:
            if not self._hangs:
                raise ValueError("the third step")
            time.sleep(1000)
        return super().step(actions)


register_env("test/Failing", make_tensors=Failing)


def test_what_a_thread_raises_ends_the_run(tmp_path: Path) -> None:
    """With the exit code of any environment that raises."""
    line = "--vectorization=tensors", "--num_envs_per_worker=4", "--rollout=4", *A2C
    ended = run(tmp_path, "--env=tests.tensors.test_tensor_runs:Failing", *line)
    assert ended.code == ExitCode.ENVIRONMENT
    assert "ValueError: the third step" in ended.err


def test_a_thread_that_hangs_ends_the_run_with_its_stacks(tmp_path: Path) -> None:
    line = "--vectorization=tensors", "--num_envs_per_worker=4", "--rollout=4", "--env_step_timeout=1", *A2C
    hangs = "--env=tests.tensors.test_tensor_runs:Failing", '--env_kwargs={"hangs": true}'
    ended = run(tmp_path, *hangs, *line)
    assert ended.code == ExitCode.ENVIRONMENT
    assert "rollout-0 took longer than 1 s to step environment 0 (--env_step_timeout). It is a thread" in ended.err
    assert "in step" in ended.err
    assert any((tmp_path / "train_dir/default_experiment/checkpoint_p0").glob("checkpoint_*"))


def test_other_environments_are_told(tmp_path: Path) -> None:
    finished = run(tmp_path, "--env=CartPole-v1", "--vectorization=tensors", "--train_for_env_steps=100")
    assert finished.code != 0
    assert "CartPole-v1 is no simulator in tensors" in finished.err


@pytest.mark.more
@can_emulate
def test_whole_run_in_tensors_on_another_device(tmp_path: Path) -> None:
    """The simulator is there as well, because its maker takes a device: nothing of a step passes through the host."""
    line = "--env=sf/Carts-v0", "--device=gpu", "--num_envs_per_worker=16", "--rollout=16", *A2C
    site = f"{ROOT}/tests/helpers/elsewhere_site{os.pathsep}{ROOT}"
    finished = run(tmp_path, *line, "--train_for_env_steps=3000", python_path=site)
    assert finished.code == 0, finished.err
    assert "sf/Carts-v0 is stepped, acted in and learned from on elsewhere:0, by one process" in finished.out
    assert summary_of(tmp_path)["frames"] >= 3000
    resumed = run(tmp_path, *line, "--train_for_env_steps=6000", python_path=site)
    assert resumed.code == 0, resumed.err
    assert summary_of(tmp_path)["frames"] >= 6000
    assert "begin new episodes" not in resumed.out
    at_once = run(
        tmp_path, *line, "--vectorization=tensors", "--experiment=two", "--train_for_env_steps=3000", python_path=site
    )
    assert at_once.code == 0, at_once.err
    assert "on elsewhere:0, by two threads" in at_once.out
