"""What is left of a run when it ends: summary.json, and where its time went."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import sf
from sf.machine.origin import Origin
from sf.monitor import Lag, PolicySnapshot
from sf.monitor.time_shares import bottleneck, time_share_table
from tests.helpers.events import read_flags, read_texts
from tests.helpers.monitored import SECONDS, Run, Start, episode


def test_a_learner_with_a_buffer_is_told_of_its_own_flag() -> None:
    seconds = {"rollout-0": {"step": 1.0, "wait": 9.0}, "learner-0": {"update": 9.5, "wait": 0.5}}
    assert bottleneck(seconds, replays=True).startswith("Training holds the run back: lower --replay_ratio")
    busy = {"rollout-0": {"step": 9.5, "wait": 0.5}, "learner-0": {"update": 1.0, "wait": 9.0}}
    assert bottleneck(busy, replays=True) == bottleneck(busy)


def test_summary_of_the_run(start: Start, tmp_path: Path) -> None:
    run = start()
    run.go(10, lambda: [episode()])
    run.policy = PolicySnapshot(version=7, lag=Lag(0.0, 1.5, 4.0))
    run.finish()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == {
        "exit_reason": "train_for_env_steps reached",
        "exit_code": 0,
        "frames": 1000,
        "env_steps": 1000,
        "new_frames": 1000,
        "wall_time_s": 10.0,
        "fps": 100.0,
        "policies": [
            {
                "frames": 1000,
                "samples": 1000,
                "policy_version": 7,
                "lag": {"min": 0.0, "avg": 1.5, "max": 4.0},
                "too_old": 0,
                "cut_short": 0,
                "lag_of_run": {"avg": -1.0, "max": -1.0},
                "reward": 1.25,
                "episodes": 20,
            }
        ],
        "seconds": SECONDS,
        "slots": {"allocated": 7, "learned": 4, "discarded": {"worker_died": 1}, "free": 2, "in_flight": 0},
        "faults": {},
        "versions": {
            "sf": sf.__version__,
            "python": platform.python_version(),
            "torch": version("torch"),
            "numpy": np.__version__,
            "gymnasium": gymnasium.__version__,
        },
    }


def test_the_summary_and_tensorboard_say_where_a_run_comes_from(tmp_path: Path) -> None:
    run = Run(tmp_path, origin=Origin("sf-train --env=Toy-v0", "c0ffee", has_changes=True))
    run.go(2, lambda: [episode()])
    run.finish()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["origin"] == {"command": "sf-train --env=Toy-v0", "commit": "c0ffee", "has_changes": True}
    assert read_texts(tmp_path / ".summary" / "0") == {
        "run/command/text_summary": "    sf-train --env=Toy-v0",
        "run/commit/text_summary": "    c0ffee, with changes",
    }
    flags = read_flags(tmp_path / ".summary" / "0")
    assert (flags["env"], flags["batch_size"], flags["async_rl"]) == ("Toy-v0", 64.0, True)
    assert "train_for_env_steps" not in flags, "it has no value"


def test_directory_that_has_gone_does_not_hide_the_end(tmp_path: Path) -> None:
    run = Run(tmp_path / "gone")
    run.finish()
    assert len(run.tape.lines("summary.json was not written to")) == 1
    assert run.tape.lines("Collected")


@pytest.mark.parametrize(
    ("busy", "verdict"),
    [
        ((0.9, 0.2, 0.7), "The environments hold the run back: add --num_workers if cores are free."),
        ((0.5, 0.8, 0.7), "Inference holds the run back: give it larger groups with more --num_envs_per_worker."),
        ((0.5, 0.2, 0.7), "Training holds the run back: lower --num_epochs or take a larger --batch_size."),
        ((0.5, 0.2, 0.4), "No role holds the run back (busy: rollout 50%, inference 20%, learner 40%): they wait"),
    ],
)
def test_bottleneck_is_the_role_that_waits_least(busy: tuple[float, float, float], verdict: str) -> None:
    names = ("rollout-0", "inference-0-0", "learner-0")
    seconds = {name: {"work": share, "wait": 1 - share} for name, share in zip(names, busy, strict=True)}
    seconds["rollout-1"] = seconds["rollout-0"]
    assert bottleneck(seconds).startswith(verdict)


@pytest.mark.parametrize(
    ("asked", "cores", "verdict"),
    [
        (
            1.9,
            2,
            "the run asks for 1.9 of 2 cores, so the machine is full and more --num_workers will not help; a core more "
            "would give up to 50 %.",
        ),
        (
            0.9,
            1,
            "the run asks for 0.9 of 1 core, so the machine is full and more --num_workers will not help; a core more "
            "would give up to 100 %.",
        ),
        (
            1.2,
            4,
            "add --num_workers, because the run asks for 1.2 of 4 cores.",
        ),
        (
            0.0,
            2,
            "add --num_workers if cores are free.",
        ),
    ],
)
def test_more_workers_are_advised_only_where_cores_are_free(asked: float, cores: int, verdict: str) -> None:
    """Environments that sleep keep their workers busy, and no core."""
    seconds = {"rollout-0": {"step": 0.9, "wait": 0.1}, "learner-0": {"update": 0.2, "wait": 0.8}}
    expected = f"The environments hold the run back: {verdict} (Busy: rollout 90%, learner 20%.)"
    assert bottleneck(seconds, asked, cores) == expected
    waiting = {"rollout-0": {"step": 0.5, "wait": 0.5}}
    assert ("of which none is free" in bottleneck(waiting, asked, cores)) is (asked >= 0.85 * cores)


@pytest.mark.parametrize(
    ("workers", "busy", "learners", "asked", "is_advised"),
    [
        (2, 0.7, 1, 2.3, True),
        (2, 0.7, 1, 2.02, False),
        (1, 0.7, 1, 2.3, False),
        (2, 0.1, 3, 3.0, False),  # learners of several policies, or one of several threads
        (2, 0.4, 1, 3.0, False),
    ],
)
def test_fewer_workers_are_advised_where_they_take_cores_from_the_learner(
    workers: int, busy: float, learners: int, asked: float, is_advised: bool
) -> None:
    rollout = {f"rollout-{index}": {"step": busy, "wait": 1 - busy} for index in range(workers)}
    learner = {f"learner-{index}": {"update": 0.8, "wait": 0.2} for index in range(learners)}
    advice = ", or try fewer --num_workers, because the run asks for 2.3 of 2 cores" if is_advised else ""
    assert bottleneck(rollout | learner, asked, cores=2) == (
        f"Training holds the run back: lower --num_epochs or take a larger --batch_size{advice}. "
        f"(Busy: rollout {100 * busy:.0f}%, learner 80%.)"
    )


def test_time_shares_of_processes_that_never_reported() -> None:
    assert time_share_table({"rollout-0": {"step": 0.0, "wait": 0.0}}) == ""
    assert bottleneck({"rollout-0": {"step": 0.0}}) == "No process has reported where its time went."
    assert bottleneck({}) == "No process has reported where its time went."


def test_the_driver_of_a_plan_says_what_it_takes_most_of_its_time_for() -> None:
    driver = {"driver": {"learn": 1.0, "sample": 9.0}}
    assert bottleneck(driver) == "Most of the time of driver goes into sample: 90 %."
