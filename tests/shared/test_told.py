"""What several processes of a run have noticed: one of them prints it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sf import console
from sf.run.supervisor import train
from sf.shared.told import MOST_TOLD, Told
from tests.envs.test_metrics import ENV
from tests.helpers.commands import run
from tests.helpers.lab import make_config


def test_one_of_several_says_what_all_have_noticed() -> None:
    marks = np.zeros(MOST_TOLD, np.uint64)
    first, second = Told(marks), Told(marks)
    assert first.is_first("a")
    assert not second.is_first("a")
    assert not first.is_first("a")
    assert second.is_first("b \udc80")
    assert not first.is_first("b \udc80")


def test_without_room_for_more_all_are_said() -> None:
    marks = np.zeros(2, np.uint64)
    first, second = Told(marks), Told(marks)
    assert all(first.is_first(f"{number}") for number in range(3))
    assert [second.is_first(f"{number}") for number in range(3)] == [False, False, True]


@pytest.mark.parametrize("serial", [False, True])
def test_workers_warn_once_of_a_metric_that_is_no_number(tmp_path: Path, serial: bool) -> None:
    """Two may at the same moment, and more of them hardly ever do."""
    env = f"--env={ENV}", '--env_kwargs={"word": "yes"}'
    words = *env, "--num_workers=4", "--num_envs_per_worker=2"
    finished = run(tmp_path, *words, "--worker_num_splits=2", "--train_for_env_steps=2000", f"--serial_mode={serial}")
    assert finished.code == 0, finished.err
    assert 1 <= finished.out.count("info['is_success'] is a str, expected a number") < 4, finished.out


def test_a_run_in_this_process_leaves_nothing_of_itself(tmp_path: Path) -> None:
    """Its memory would stay mapped, and the next run would keep silent."""
    train(make_config(train_dir=str(tmp_path), serial_mode=True, train_for_env_steps=100))
    assert console._is_first is bool
