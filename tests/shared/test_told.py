"""Warnings that several processes of a run have: one of them prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sf.shared.told import MOST_TOLD, Told
from tests.helpers.commands import run


def test_one_of_several_says_what_all_have_noticed() -> None:
    marks = np.zeros(MOST_TOLD, np.uint64)
    first, second = Told(marks), Told(marks)
    assert first.may_say("Warning: a")
    assert not second.may_say("Warning: a")
    assert second.may_say("Warning: b \udc80")
    assert not first.may_say("Warning: b \udc80")
    assert first.may_say("Warning: a"), "what a process repeats is no repetition by others"


def test_without_room_for_more_all_are_said() -> None:
    marks = np.zeros(2, np.uint64)
    first, second = Told(marks), Told(marks)
    assert all(first.may_say(f"Warning: {number}") for number in range(3))
    assert [second.may_say(f"Warning: {number}") for number in range(3)] == [False, False, True]


def test_workers_warn_once_of_a_metric_that_is_no_number(tmp_path: Path) -> None:
    words = "--env=tests.environments.wordy:Wordy-v0", "--num_workers=3", "--num_envs_per_worker=2"
    finished = run(tmp_path, *words, "--rollout=8", "--train_for_env_steps=2000")
    assert finished.code == 0, finished.err
    assert finished.out.count("Warning: ") == 1, finished.out
