"""The learning rate over a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.config import LearnerConfig
from sf.config.updates import ScheduleName
from sf.learner.schedules import learning_rate
from sf.learner.worker import Learner
from tests.helpers.lab import make_lab

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())


@pytest.mark.parametrize("case", ORACLES["C4"]["cases"], ids=lambda case: str(case["inputs"]["preset"]))
def test_c4_linear_annealing(case: Any) -> None:
    inputs, expected = case["inputs"], case["expected"]
    num_updates = inputs["total_steps"] // (inputs["num_envs"] * inputs["num_steps"])
    assert num_updates == expected["num_updates"]
    schedule = learning_rate(LearnerConfig(learning_rate=inputs["lr"], lr_schedule="linear"))
    assert schedule.value == expected["first_lr"]
    for update, rate in ((1, expected["first_lr"]), (num_updates, expected["last_lr"])):
        schedule.set_progress((update - 1) / num_updates)
        assert schedule.value == pytest.approx(rate, rel=1e-9)


def part_of_run(learner: Learner, now: float) -> float:
    return learner.part_of_run.at(now, learner.frames, learner.peers, learner.leads)


@pytest.mark.parametrize("num_policies", [1, 2])
def test_c4_learner_counts_iterations(tmp_path: Path, num_policies: int) -> None:
    """500,000 steps in iterations of 4 x 128 transitions are 976; what comes after the last is like it."""
    flags: dict[str, Any] = {"num_envs_per_worker": 4, "rollout": 128, "num_policies": num_policies}
    total = 500_000 * num_policies
    lab = make_lab(tmp_path, lr_schedule="linear", learning_rate=1e-3, train_for_env_steps=total, **flags)
    learner = lab.build("learner")
    for update, rate in ((1, 1.0), (2, 975 / 976), (976, 1 / 976), (977, 1 / 976)):
        learner.frames = (update - 1) * 512
        learner.update.set_progress(part_of_run(learner, 0.0))
        assert learner.update.lr == pytest.approx(1e-3 * rate, rel=1e-9)
    learner.close()


def test_c4_progress_follows_the_limit_that_ends_the_run_first(tmp_path: Path) -> None:
    """By frames 100 iterations of 512 transitions, by time 60 seconds from when all roles were ready."""
    flags: dict[str, Any] = {"num_envs_per_worker": 4, "rollout": 128, "lr_schedule": "linear", "learning_rate": 1e-3}
    lab = make_lab(tmp_path, train_for_env_steps=51_200, train_for_seconds=60, **flags)
    learner = lab.build("learner")
    assert part_of_run(learner, 990.0) == 0.0, "not all roles are ready"
    lab.shared.began_s[0] = 1000.0
    for frames, now, left in ((0, 1000.0, 1.0), (512, 1001.2, 0.98), (25_600, 1006.0, 0.5), (26_112, 1048.0, 0.2)):
        learner.frames = frames
        learner.update.set_progress(part_of_run(learner, now))
        assert learner.update.lr == pytest.approx(1e-3 * left)
    learner.close()


def test_c4_time_alone_ends_a_schedule(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, train_for_seconds=100, lr_schedule="linear", num_envs_per_worker=4, rollout=128)
    learner = lab.build("learner")
    lab.shared.began_s[0] = 5.0
    assert [part_of_run(learner, now) for now in (5.0, 30.0, 105.0, 200.0)] == [0.0, 0.25, 0.999, 0.999]
    learner.close()


def test_linear_stays_at_zero_past_the_end() -> None:
    schedule = learning_rate(LearnerConfig(lr_schedule="linear"))
    schedule.set_progress(1.5)
    assert schedule.value == 0.0


def test_constant_ignores_everything() -> None:
    schedule = learning_rate(LearnerConfig(learning_rate=1e-3))
    schedule.set_progress(0.5)
    schedule.after_minibatch(torch.tensor(9.0))
    schedule.after_epoch()
    assert schedule.value == 1e-3
    assert not schedule.needs_divergence


@pytest.mark.parametrize(("divergence", "factor"), [(0.0201, 1 / 1.5), (0.0199, 1.0), (0.0051, 1.0), (0.0049, 1.5)])
def test_kl_adaptive_keeps_the_divergence_near_the_threshold(divergence: float, factor: float) -> None:
    config = LearnerConfig(
        learning_rate=1e-3, lr_schedule="kl_adaptive_minibatch", lr_schedule_kl_threshold=0.01, lr_adaptive_max=1e-2
    )
    schedule = learning_rate(config)
    schedule.after_minibatch(torch.tensor(divergence))
    assert schedule.value == pytest.approx(1e-3 * factor)
    schedule.after_epoch()
    assert schedule.value == pytest.approx(1e-3 * factor), "an epoch without news changes nothing"


def test_kl_adaptive_has_limits() -> None:
    config = LearnerConfig(
        learning_rate=1e-3, lr_schedule="kl_adaptive_minibatch", lr_adaptive_min=8e-4, lr_adaptive_max=1.2e-3
    )
    schedule = learning_rate(config)
    for divergence, limit in ((1.0, 8e-4), (0.0, 1.2e-3)):
        for _ in range(3):
            schedule.after_minibatch(torch.tensor(divergence))
        assert schedule.value == limit


@pytest.mark.parametrize(
    ("schedule", "largest"),
    [("kl_adaptive_batch", 6.75e-4), ("kl_adaptive_epoch", 1e-2), ("kl_adaptive_minibatch", 1e-2)],
)
def test_kl_adaptive_rises_two_steps_after_batches(schedule: ScheduleName, largest: float) -> None:
    """A policy that has learned its task hardly moves, so that the rate would rise until it does."""
    rate = learning_rate(LearnerConfig(learning_rate=3e-4, lr_schedule=schedule))
    for _ in range(20):
        rate.after_minibatch(torch.tensor(0.0))
        rate.after_epoch()
        rate.after_batch()
    assert rate.value == pytest.approx(largest)


def test_kl_adaptive_epoch_averages_its_minibatches() -> None:
    config = LearnerConfig(learning_rate=1e-3, lr_schedule="kl_adaptive_epoch", lr_schedule_kl_threshold=0.01)
    schedule = learning_rate(config)
    schedule.after_minibatch(torch.tensor(0.05))
    assert schedule.value == 1e-3, "only an epoch changes the rate"
    schedule.after_minibatch(torch.tensor(0.0))
    schedule.after_epoch()
    assert schedule.value == pytest.approx(1e-3 / 1.5)


def test_kl_adaptive_batch_looks_at_the_last_epoch() -> None:
    config = LearnerConfig(learning_rate=1e-3, lr_schedule="kl_adaptive_batch", lr_schedule_kl_threshold=0.01)
    schedule = learning_rate(config)
    for epoch in ((0.0, 0.0), (0.05, 0.01)):
        for divergence in epoch:
            schedule.after_minibatch(torch.tensor(divergence))
        schedule.after_epoch()
        assert schedule.value == 1e-3, "only a batch changes the rate"
    schedule.after_batch()
    assert schedule.value == pytest.approx(1e-3 / 1.5)
    schedule.after_epoch()
    schedule.after_batch()
    assert schedule.value == pytest.approx(1e-3 / 1.5), "a batch whose steps were skipped changes nothing"


@pytest.mark.parametrize(
    ("schedule", "looks"),
    [("constant", (False, False)), ("kl_adaptive_epoch", (True, True)), ("kl_adaptive_batch", (False, True))],
)
def test_only_the_last_epoch_counts_for_a_batch(schedule: ScheduleName, looks: tuple[bool, bool]) -> None:
    rate = learning_rate(LearnerConfig(lr_schedule=schedule))
    assert (rate.looks_at(may_be_last=False), rate.looks_at(may_be_last=True)) == looks
