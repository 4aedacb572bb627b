"""Which transitions train: minibatches, and masks for what is too old or of another policy."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner import minibatches
from sf.learner.minibatches import Selection, older
from sf.learner.update import Update
from sf.shared.records import LAGS_COUNTED
from tests.helpers.updates import ORACLES, act, after_one_step, learner_config, make_policy, one_thread_and_seed, train


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    one_thread_and_seed()


# ------------------------------------------------------------------------------------------------------- minibatches


def select(own: Any = None, ages: Any = None, shape: tuple[int, int] = (4, 3), max_age: int = 10) -> Selection:
    own = torch.ones(shape, dtype=torch.bool) if own is None else own
    return Selection(own, torch.zeros(shape, dtype=torch.int64) if ages is None else ages, max_age)


@pytest.mark.parametrize("whole_trajectories", [False, True])
def test_rows_of_an_epoch_go_to_the_device_in_one_transfer(
    whole_trajectories: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfers, to = [], Tensor.to

    def counted(tensor: Tensor, *args: Any) -> Tensor:
        transfers.append(len(tensor))
        return to(tensor, *args)

    monkeypatch.setattr(Tensor, "to", counted)
    own, ages = torch.ones(6, 8, dtype=torch.bool), torch.arange(6).repeat(8, 1).t()
    parts = Selection(own, ages, 4, device=torch.device("meta")).deal(4, True, whole_trajectories)
    here = Selection(own, ages, 4).deal(4, True, whole_trajectories)
    assert len(transfers) == 1
    for part, same in zip(parts, here, strict=True):
        assert part.counted.is_cpu
        for name in ("trained", "columns", "kept"):
            there, wanted = getattr(part, name), getattr(same, name)
            assert (there is None) == (wanted is None)
            assert there is None or there.is_meta


ELSEWHERE = torch.device("cpu", 0)
"""Not equal to the CPU, and yet there."""


@pytest.mark.parametrize("num_parts", [1, 3, 5])
def test_a_device_deals_transitions_that_are_alike_as_the_host_does(
    num_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minibatches, "DEALT_THERE_FROM", 12)
    own, ages = torch.ones(4, 3, dtype=torch.bool), torch.full((4, 3), 2)
    dealt = []
    for device in (torch.device("cpu"), ELSEWHERE):
        selection = Selection(own, ages, 4, device=device)
        assert (selection.num_trained, selection.num_own, selection.lag_while_acting) == (12, 12, 0.0)
        assert selection.trained_rows is None
        dealt.append(selection.deal(num_parts, shuffle=False))
    for there, here in zip(dealt[1], dealt[0], strict=True):
        assert there.ages == here.ages == (2.0, 2.0, 2.0)
        assert older(there.each_age, 3).tolist() == older(here.each_age, 3).tolist() == [5] * len(here.each_age)
        assert older(there.each_age, 3).strides == (0,), "one number in memory"
        assert there.num_trained == here.num_trained
        assert (there.trained is None) == (here.trained is None)
        assert there.trained is None or there.trained.tolist() == here.trained.tolist()  # type: ignore[union-attr]


def test_a_device_shuffles_by_the_random_numbers_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose state is in checkpoints."""
    monkeypatch.setattr(minibatches, "DEALT_THERE_FROM", 200)
    own, ages = torch.ones(20, 10, dtype=torch.bool), torch.zeros(20, 10, dtype=torch.int64)
    selection = Selection(own, ages, 4, device=ELSEWHERE)
    torch.manual_seed(5)
    state, orders = torch.get_rng_state(), []
    for _ in range(2):
        orders.append(torch.cat([part.counted for part in selection.deal(3, shuffle=True)]).tolist())
    torch.set_rng_state(state)
    again = torch.cat([part.counted for part in selection.deal(3, shuffle=True)]).tolist()
    assert again == orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(200))


@pytest.mark.parametrize("kind", ["other ages", "too old", "of another policy", "left out"])
def test_a_device_leaves_other_datasets_to_the_host(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minibatches, "DEALT_THERE_FROM", 12)
    own, ages = torch.ones(4, 3, dtype=torch.bool), torch.full((4, 3), 2)
    if kind == "other ages":
        ages[1, 1] = 1
    if kind == "of another policy":
        own[1, 1] = False
    max_age, oldest = 2 if kind == "too old" else 10, 1 if kind == "left out" else None
    dealt = []
    for device in (torch.device("cpu"), ELSEWHERE):
        torch.manual_seed(1)
        dealt.append(Selection(own, ages, max_age, device=device, oldest=oldest).deal(2, True))
    assert [part.counted.tolist() for part in dealt[0]] == [part.counted.tolist() for part in dealt[1]]
    assert [part.ages for part in dealt[0]] == [part.ages for part in dealt[1]]


def test_lags_of_one_number_count_as_often_as_there_are_transitions() -> None:
    update = Update(make_policy(), LearnerConfig())
    update._count([older(np.broadcast_to(np.int64(2), 7), 1), np.array([1, 3, 3]), np.zeros(0, np.int64)])
    assert update.lag_counts[:5].tolist() == [0, 1, 0, 9, 0]
    update._count([np.broadcast_to(np.int64(LAGS_COUNTED + 5), 3)])
    assert update.lag_counts[LAGS_COUNTED] == 3


def test_c6_each_epoch_is_a_fresh_permutation() -> None:
    selection = select(shape=(32, 8))
    epochs = [[part.trained for part in selection.deal(4, shuffle=True)] for _ in range(2)]
    orders = [torch.cat([rows for rows in epoch if rows is not None]).tolist() for epoch in epochs]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(256))
    assert [len(rows) for rows in epochs[0] if rows is not None] == [64] * 4


def test_without_shuffling_parts_are_whole_trajectories() -> None:
    parts = select(shape=(4, 6)).deal(3, shuffle=False)
    columns = [sorted(set((part.counted % 6).tolist())) for part in parts]
    assert columns == [[0, 1], [2, 3], [4, 5]]
    assert [len(part.counted) for part in parts] == [8, 8, 8]


def test_rows_that_cannot_be_divided_make_nearly_equal_parts() -> None:
    own = torch.ones(4, 3, dtype=torch.bool)
    own[0, 0] = own[1, 2] = False
    parts = select(own).deal(4, shuffle=True)
    assert [len(part.counted) for part in parts] == [3, 3, 2, 2]
    assert sorted(torch.cat([part.counted for part in parts]).tolist()) == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def test_fewer_rows_than_parts_make_fewer_steps() -> None:
    update = Update(make_policy(), learner_config(num_batches_per_epoch=5))
    assert len(train(update, act(update.policy, num_steps=3, num_trajectories=1))) == 3


def test_one_minibatch_is_the_dataset_itself() -> None:
    (part,) = select().deal(1, shuffle=True)
    assert part.trained is None
    assert sorted(part.counted.tolist()) == list(range(12))


# ------------------------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("case", ORACLES["A24"]["cases"])
def test_a24_valid_is_younger_than_max_policy_lag(case: Any) -> None:
    inputs, expected = case["inputs"], case["expected"]
    ages = inputs["version_at_dataset_start"] - torch.tensor(inputs["labels"]).view(2, 2)
    assert ages.flatten().tolist() == expected["lags"]
    selection = select(shape=(2, 2), ages=ages, max_age=inputs["max_policy_lag"])
    assert selection.trained_rows is not None
    assert sorted(selection.trained_rows.tolist()) == [i for i, valid in enumerate(expected["valid"]) if valid]


@pytest.mark.parametrize("reason", ["too old", "beyond the bound", "other policy"])
def test_a24_training_equals_training_on_the_valid_subset(reason: str) -> None:
    limit = {"bound_policy_lag": 4} if reason == "beyond the bound" else {"max_policy_lag": 5}
    config = learner_config(normalize_advantages=True, learning_rate=1e-2, **limit)
    policy = make_policy()
    whole = act(policy, num_steps=6, num_trajectories=4)
    subset = whole.trajectories(torch.arange(3))
    whole.policy_version[:, :3] = subset.policy_version[:] = 10
    if reason == "other policy":
        whole.valid[:, 3], whole.policy_version[:, 3] = False, 10
        # What another policy recorded may be anything.
        whole.behavior_log_probs[:, 3] = whole.values[:, 3] = whole.rewards[:, 3] = torch.nan
        whole.observations["obs"][:, 3] = torch.nan
        factor = 1.0
    else:
        whole.policy_version[:, 3] = 5
        factor = 0.75
    masked, masked_flat = after_one_step(policy, whole, config, version=10)
    _, expected_flat = after_one_step(
        policy, subset, dataclasses.replace(config, learning_rate=factor * config.initial_rate), version=10
    )
    torch.testing.assert_close(masked_flat, expected_flat)
    summary = masked.summary()
    assert summary["lr"] == config.learning_rate
    assert summary["actual_lr"] == pytest.approx(factor * config.learning_rate)
    assert summary["valids_fraction"] == 0.75
    assert summary["same_policy_fraction"] == (0.75 if reason == "other policy" else 1.0)
    assert summary["version_diff_max"] == (5 if reason == "too old" else 0)


def test_a24_lag_is_that_at_the_start_of_the_dataset() -> None:
    update = Update(make_policy(), learner_config(max_policy_lag=2, num_batches_per_epoch=4, num_epochs=2))
    batch = act(update.policy, num_steps=4, num_trajectories=8)
    assert [lag for lag, _, _ in train(update, batch)] == list(range(8))


def test_a24_dataset_without_a_valid_transition_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    update = Update(make_policy(), learner_config(max_policy_lag=3))
    update.version = 3
    before = update.policy.flat.clone()
    with caplog.at_level(logging.ERROR):
        assert train(update, act(update.policy)) == []
    assert "all 48 transitions are max_policy_lag=3 or more optimizer steps old" in caplog.text
    assert update.version == 3
    assert torch.equal(update.policy.flat, before)
    assert update.summary() == {}


@pytest.mark.parametrize(
    ("is_own", "why"),
    [(False, "other policies chose all of them"), (True, "all of them are too old for bound_policy")],
)
def test_dataset_without_a_transition_that_counts_is_skipped(
    is_own: bool, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    update = Update(make_policy(), learner_config(bound_policy_lag=2))
    update.version = 3
    batch = act(update.policy)
    batch.valid.fill_(is_own)
    assert train(update, batch) == []
    assert f"Skipped a dataset of 48 transitions: {why}" in caplog.text
    assert update.num_left_out == (48 if is_own else 0)
    empty = batch.trajectories(torch.arange(0))
    assert train(update, empty) == []
