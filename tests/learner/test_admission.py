"""`--bound_policy_lag`: which trajectories may begin, and that no optimizer step sees an older transition."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sf
from sf.config import check, limit_of_drawn_lag
from sf.errors import ConfigError, ExitCode
from sf.learner.admission import Admission
from sf.learner.algorithm import Losses
from sf.learner.dataset import Transitions
from sf.learner.lag_target import LagTarget
from sf.learner.update import Update
from sf.policy import Evaluation
from sf.shared.slot_fields import UNLIMITED, Discard
from sf.shared.slots import Slots
from tests.helpers.commands import run
from tests.helpers.lab import make_config, make_lab, step_until
from tests.helpers.updates import act, learner_config, make_policy, one_thread_and_seed

GROUPS: dict[str, Any] = {"num_workers": 4, "num_envs_per_worker": 4, "worker_num_splits": 2, "rollout": 8}


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    """Slots of eight groups with two rows and four slots each."""
    found = make_lab(tmp_path, async_rl=True, num_batches_to_accumulate=4, batch_size=128, **GROUPS).slots
    assert (found.topology.num_groups, found.topology.rows, found.topology.slots_per_group) == (8, 2, 4)
    return found


def begin(slots: Slots, group: int) -> int:
    """The group takes its next free slot; returns it."""
    own = slots.topology.slots_of_group(group)
    slot = own[int(slots.filled[own.start : own.stop].sum()) % len(own)]
    slots.start_filling(slot)
    return slot


def permissions(slots: Slots) -> int:
    return int(np.maximum(slots.allowed_slots, 0).sum())


@pytest.mark.parametrize(
    ("bound", "steps_done", "batches", "version", "slots_allowed"),
    [
        (3, 0, 0, 0, 8),  # K = 4: one batch of 16 trajectories, as in synchronous mode
        (6, 0, 0, 0, 8),
        (7, 0, 0, 0, 16),  # the second batch sees its last step 7 later
        (11, 0, 0, 0, 24),
        (6, 0, 0, 1, 16),  # one step is done, so that one more is left for the next batch
        (5, 4, 1, 5, 16),  # d = 1, no room for a third batch yet
        (5, 4, 1, 6, 24),
        (8, 4, 1, 7, 32),
        (8, 3, 1, 3, 24),  # a batch that ended early does not shift the others
    ],
)
def test_trajectories_that_may_have_begun(
    slots: Slots, bound: int, steps_done: int, batches: int, version: int, slots_allowed: int
) -> None:
    """16 trajectories, that is 8 slots, for each batch of 4 steps."""
    made = Admission(slots, 0, trajectories=16, steps=4, bound=bound, version=0)
    if batches:
        made.batch_is_over(steps_done, num_used=16 * batches)
    for _ in range(10):  # a group is given one at a time
        made.deal(version)
        for group in range(8):
            while slots.may_begin(group):
                slot = begin(slots, group)
                slots.finish_filling(slot)
                slots.take(slot, 0)
                slots.release(slot, 0)
    assert slots.filling.sum() == slots_allowed


def test_groups_without_a_free_slot_get_none(slots: Slots) -> None:
    made = Admission(slots, 0, trajectories=16, steps=4, bound=3, version=0)
    for slot in slots.topology.slots_of_group(5):
        slots.start_filling(slot)
        slots.finish_filling(slot)
    made.deal(0)
    assert not slots.may_begin(5)
    assert permissions(slots) == 4, "eight slots, of which it has filled four"


def test_what_a_dead_worker_has_begun_is_given_again(slots: Slots) -> None:
    made = Admission(slots, 0, trajectories=16, steps=4, bound=3, version=0)
    made.deal(0)
    taken = [begin(slots, group) for group in range(8)]
    assert not made.deal(0)
    slots.discard(taken[3], Discard.WORKER_DIED)
    assert made.deal(0)
    assert [slots.may_begin(group) for group in range(8)].count(True) == 1


def test_a_permission_that_lies_unused_goes_to_another_group(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    made = Admission(slots, 0, trajectories=16, steps=4, bound=3, version=0)
    made.deal(0)
    for group in range(1, 8):  # group 0 stands still
        slots.finish_filling(begin(slots, group))
    assert not made.deal(0)
    now += 0.9
    assert not made.deal(0)
    now += 0.2
    assert made.deal(0)
    assert not slots.may_begin(0)
    assert [group for group in range(8) if slots.may_begin(group)] == [1]
    assert permissions(slots) == 8


def test_a_slot_begun_before_the_first_deal_counts(slots: Slots) -> None:
    """Workers begin while learners load torch."""
    begin(slots, 2)
    made = Admission(slots, 0, trajectories=16, steps=4, bound=3, version=0)
    made.deal(0)
    allowed = [group for group in range(8) if slots.may_begin(group)]
    assert allowed == [0, 1, 3, 4, 5, 6, 7]


def test_slots_wider_than_a_batch_are_begun_for_the_next_one(slots: Slots) -> None:
    made = Admission(slots, 0, trajectories=1, steps=4, bound=11, version=0)
    made.deal(0)
    assert permissions(slots) >= 1


def test_without_a_bound_nothing_is_held_back(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    lab.build_all()
    assert (lab.slots.allowed_slots == UNLIMITED).all()


def test_older_transitions_are_left_out_whatever_began() -> None:
    one_thread_and_seed()
    config = learner_config(num_epochs=2, num_batches_per_epoch=2, bound_policy_lag=5)
    update, seen = Update(make_policy(), config), []
    update.version = 10
    batch = act(update.policy)
    versions = torch.tensor([[10, 9, 8, 7, 6, 5]] * 8)  # the last of four steps comes three versions later
    for step in update.steps(batch.with_columns(policy_version=versions)):
        seen.append((step.lag_min, step.lag_max))
    assert update.num_left_out == 3 * 8, "those of 7, 6 and 5"
    assert update.version == 14
    assert seen == [(0, 2), (1, 3), (2, 4), (3, 5)]


class Sleepy(sf.PPO):
    """Takes a random time for a step, up to 20 ms."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        time.sleep(random.uniform(0.0, 0.02))
        return super().loss(evaluation, minibatch)


@pytest.mark.more
@pytest.mark.parametrize("bound", [3, 8])
@pytest.mark.parametrize("acting", ["--policy_workers_per_policy=0", "--policy_workers_per_policy=1"])
def test_no_step_of_a_run_sees_more_than_the_bound(tmp_path: Path, bound: int, acting: str) -> None:
    """Four steps on each batch, by a learner that is slow at random. Without a bound lags reach 27."""
    finished = run(
        tmp_path / "out", "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=bound", "--num_workers=2",
        "--num_envs_per_worker=8", "--rollout=16", "--batch_size=128", "--num_batches_per_epoch=2", "--num_epochs=2",
        f"--bound_policy_lag={bound}", "--algorithm=tests.learner.test_admission:Sleepy", "--train_for_env_steps=12000",
        "--num_batches_to_accumulate=7", acting,
    )  # fmt: skip
    assert finished.code == ExitCode.FINISHED, finished.err
    (policy,) = json.loads((tmp_path / "bound" / "summary.json").read_text())["policies"]
    assert 3 <= policy["lag_of_run"]["max"] <= bound
    assert policy["frames"] >= 12_000
    assert policy["too_old"] <= 0.2 * policy["frames"], "admission has foreseen nearly all, beside other processes too"


@pytest.mark.more
@pytest.mark.parametrize("target", [2.0, 4.0])
def test_average_lag_of_a_run_comes_near_its_target(tmp_path: Path, target: float) -> None:
    """Without the target the slots hold so many batches that the average is 25.5."""
    finished = run(
        tmp_path / "out", "--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=target", "--num_workers=2",
        "--num_envs_per_worker=8", "--rollout=16", "--batch_size=128", "--num_batches_per_epoch=2", "--num_epochs=2",
        "--num_batches_to_accumulate=7", f"--target_policy_lag={target}", "--train_for_env_steps=25000",
        "--algorithm=tests.learner.test_admission:Sleepy",
    )  # fmt: skip
    assert finished.code == ExitCode.FINISHED, finished.err
    (policy,) = json.loads((tmp_path / "target" / "summary.json").read_text())["policies"]
    assert abs(policy["lag_of_run"]["avg"] - target) < 2.0, "beside other processes, which hold workers back"


def test_limit_moves_against_the_difference_and_stays_within_its_range() -> None:
    target = LagTarget(10.0, steps=16, batches_held=2)
    assert target.limit == 17.5, "the largest lag of a run whose mean is 10"
    target.observe(15.0)
    assert target.limit == pytest.approx(16.5)
    for _ in range(50):
        target.observe(30.0)
    assert target.limit == 15.0, "one batch needs so much"
    for _ in range(100):
        target.observe(0.0)
    assert target.limit == 31.0, "the slots hold no more"


def test_a_changed_limit_is_told_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    target = LagTarget(10.0, steps=16, batches_held=4)
    for _ in range(20):
        target.observe(5.0)
    assert target.sentence() == ""
    now = 11.0
    assert target.sentence() == (
        "Trajectories begin for lags up to 37.5 (before: 17.5), so that the average policy lag stays near "
        "target_policy_lag=10."
    )
    now = 22.0
    assert target.sentence() == "", "nothing has changed since"


def test_serial_run_keeps_to_the_bound(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, async_rl=True, batch_size=64, num_epochs=2, bound_policy_lag=3, num_envs_per_worker=8)
    roles = lab.build_all()
    step_until(roles, lambda: roles[0].update.version >= 20)
    assert roles[0].record["lag_most"] <= 3
    assert roles[0].update.num_left_out == 0


@pytest.mark.parametrize("bounds", [(3, 3), (None, 3), (3, None)])
def test_serial_run_goes_on_with_or_without_its_bound(tmp_path: Path, bounds: tuple[int | None, int | None]) -> None:
    """Slots that were counted before the resume count no more; with the same bound it goes on in its episodes."""
    for number, bound in enumerate(bounds, start=1):
        flags: dict[str, Any] = {} if bound is None else {"bound_policy_lag": bound}
        result = sf.train(
            "CartPole-v1", train_dir=str(tmp_path), serial_mode=True, num_workers=1, num_envs_per_worker=8, rollout=16,
            batch_size=64, num_batches_per_epoch=2, num_epochs=2, train_for_env_steps=2048 * number,
            **flags,
        )  # fmt: skip
        (policy,) = result.summary["policies"]
        assert policy["frames"] == 2048 * number
        assert policy["lag_of_run"]["max"] == 3
        assert policy["too_old"] == 0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            {"bound_policy_lag": 2},
            r"bound_policy_lag=2 is less than one batch needs\. .* = 4 optimizer steps, and even ",
        ),
        (
            {"bound_policy_lag": 2},
            r"lag 0 in the first of them, 1 in the second, and 3 in the last\. Use --bound_policy_",
        ),
        (
            {"bound_policy_lag": 10, "batch_size": 8},
            r"Here 4 trajectories of a group share batches of 2\. .*=11 or mo",
        ),
        (
            {"bound_policy_lag": 50, "num_policies": 2, "env": "sf/TwoAgentEcho-v0"},
            r"num_policies=2: a trajectory would",
        ),
        (
            {"target_policy_lag": 9.0, "num_policies": 2, "env": "sf/TwoAgentEcho-v0"},
            r"target_policy_lag=9 with num_policies=2: a trajectory would",
        ),
        ({"target_policy_lag": 1.0}, r"target_policy_lag=1 cannot be reached: .* Use --target_policy_lag=1\.5 or more"),
        ({"target_policy_lag": 5.0, "bound_policy_lag": 4}, r"bound_policy_lag=4 is below target_policy_lag=5"),
        ({"target_policy_lag": 2.0, "async_rl": False}, r"average lag of a synchronous run is exactly 1\.5"),
    ],
)
def test_a_bound_that_cannot_be_kept_is_refused(tmp_path: Path, flags: dict[str, Any], sentence: str) -> None:
    settings = {"num_epochs": 2, "num_batches_per_epoch": 2, "batch_size": 64, "async_rl": True} | flags
    with pytest.raises(ConfigError, match=sentence):
        make_lab(tmp_path, **settings)


@pytest.mark.parametrize(("batches", "largest"), [("1b", 3), ("2b", 7), ("12b", 47)])
def test_a_bound_in_batches_follows_the_optimizer_steps_on_each(tmp_path: Path, batches: str, largest: int) -> None:
    settings: dict[str, Any] = {"num_epochs": 2, "num_batches_per_epoch": 2, "batch_size": 64, "async_rl": True}
    lab = make_lab(tmp_path, bound_policy_lag=batches, **settings)
    assert lab.config.learner.lag_bound == limit_of_drawn_lag(lab.config.learner, lab.config.replay) == largest
    roles = lab.build_all()
    step_until(roles, lambda: roles[0].update.version >= 20)
    assert roles[0].record["lag_most"] <= largest


@pytest.mark.parametrize("text", ["b", "0b", "2 b", "-1b", "1.5b", "twob", "2B"])
def test_a_bound_that_is_no_number_of_batches_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"bound_policy_lag={text} must be an integer, .* batches like 2b\."):
        check(make_config(bound_policy_lag=text))


def test_a_bound_is_no_part_of_a_check_before_the_environment_is_known() -> None:
    check(make_config(bound_policy_lag=0))
