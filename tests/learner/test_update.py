"""The update: version, lag, direction, summary and state; its numbers are compared in test_oracle.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sf.errors import CheckpointError
from sf.learner.update import Update
from sf.spaces import ActionSpec
from tests.helpers.updates import (
    BOX,
    DISCRETE,
    OBS_SIZE,
    ORACLES,
    act,
    learner_config,
    make_policy,
    one_thread_and_seed,
    train,
)


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    one_thread_and_seed()


# ------------------------------------------------------------------------------------------------------ version, lag


def test_a2_version_rises_by_one_with_each_step() -> None:
    update = Update(make_policy(), learner_config(num_batches_per_epoch=3, num_epochs=2))
    versions = [step.version for step in update.steps(act(update.policy))]
    assert versions == [1, 2, 3, 4, 5, 6]
    assert update.version == 6


@pytest.mark.parametrize("case", ORACLES["A4"]["cases"])
def test_a4_lag_of_a_minibatch(case: Any) -> None:
    inputs, expected = case["inputs"], case["expected"]
    update = Update(make_policy(), learner_config())
    update.version = inputs["version_before_step"]
    batch = act(update.policy, num_steps=2, num_trajectories=2)
    batch = batch.with_columns(policy_version=torch.tensor(inputs["labels"]).view(2, 2))
    assert train(update, batch) == [(expected["min"], expected["avg"], expected["max"])]


def test_a4_lag_counts_only_the_own_policy() -> None:
    update = Update(make_policy(), learner_config())
    update.version = 7
    batch = act(update.policy, num_steps=2, num_trajectories=2)
    batch = batch.with_columns(policy_version=torch.tensor([[7, 5], [100, 3]]))
    batch.valid[1, 0] = False
    assert train(update, batch) == [(0.0, 2.0, 4.0)]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("case", ORACLES["A5"]["cases"])
def test_a5_staircase(case: Any, shuffle: bool) -> None:
    inputs = case["inputs"]
    config = learner_config(
        num_epochs=inputs["num_epochs"],
        num_batches_per_epoch=inputs["num_batches_per_epoch"],
        shuffle_minibatches=shuffle,
    )
    update = Update(make_policy(), config)
    lags = []
    for _ in range(inputs["num_iterations"]):
        lags += train(update, act(update.policy, version=update.version))
    assert lags == [(lag, lag, lag) for lag in case["expected"]["lag_sequence"]]


# ----------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("action", [DISCRETE, BOX])
def test_advantage_of_the_better_action_makes_it_more_probable(action: ActionSpec) -> None:
    policy = make_policy(action)
    update = Update(policy, learner_config(num_epochs=5, num_batches_per_epoch=4, learning_rate=3e-3))
    good = 2 if action is DISCRETE else 0.5

    def score(actions: Tensor) -> Tensor:
        return (actions == good).float() if action is DISCRETE else -(actions - good).square().sum(-1)

    observations = {"obs": torch.randn(256, OBS_SIZE)}
    before = score(policy.act(observations).action).mean()
    for _ in range(15):
        batch = act(policy, num_steps=16, num_trajectories=16, version=update.version)
        batch = batch.with_columns(rewards=score(batch.actions))
        batch.terminated.fill_(True)
        train(update, batch)
    assert score(policy.act(observations).action).mean() > before + 0.3


# ----------------------------------------------------------------------------------------------------------- summary

TAGS_OF_A21_AND_A22 = [
    "version_diff_min",
    "version_diff_avg",
    "version_diff_max",
    "lr",
    "actual_lr",
    "grad_norm",
    "adam_max_second_moment",
    "loss",
    "policy_loss",
    "value_loss",
    "exploration_loss",
    "kl_loss",
    "entropy",
    "fraction_clipped",
    "kl_divergence",
    "kl_divergence_max",
    "ratio_min",
    "ratio_mean",
    "ratio_max",
    "max_abs_logprob",
    "value",
    "value_delta",
    "value_delta_max",
    "adv_min",
    "adv_max",
    "adv_std",
    "returns_running_mean",
    "returns_running_std",
    "valids_fraction",
    "same_policy_fraction",
    "obs_running_mean",
    "obs_running_std",
]
TAGS_OF_C12 = ["clipfrac", "old_approx_kl", "half_mean_squared_log_ratio", "approx_kl", "explained_variance"]
TAGS_OF_CR1 = ["first_ratio_min", "first_ratio_max"]


def test_a21_a22_tags() -> None:
    update = Update(make_policy(), learner_config(num_batches_per_epoch=2, num_epochs=2))
    train(update, act(update.policy))
    assert update.summary() == {}, "nothing is computed unless asked"
    update.want_summary = True
    train(update, act(update.policy, version=update.version))
    summary = update.summary()
    tags_of_lag = {f"{kind}_at_lag/{lags}" for kind in ("ratio", "ESS", "clipped") for lags in ("0", "1", "2-3")}
    assert set(summary) == {*TAGS_OF_A21_AND_A22, *TAGS_OF_C12, *TAGS_OF_CR1, *tags_of_lag, "skipped_steps"}
    assert all(np.isfinite(value) for value in summary.values())
    assert summary["version_diff_avg"] == 3


def test_a22_running_statistics_are_absent_when_switched_off() -> None:
    update = Update(make_policy(normalize_input=False, normalize_returns=False), learner_config())
    update.want_summary = True
    train(update, act(update.policy))
    assert not [tag for tag in update.summary() if "running" in tag]


# ------------------------------------------------------------------------------------------------------------- state


def test_resumed_update_goes_on_as_the_first_would() -> None:
    config = learner_config(num_batches_per_epoch=2, num_epochs=2, lr_schedule="kl_adaptive_minibatch")
    first = Update(make_policy(), config)
    train(first, act(first.policy))
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    batch = act(first.policy, version=first.version)
    second = Update(make_policy(), config)
    second.load_state_dict(state)
    assert (second.version, second.lr) == (first.version, first.lr) == (4, state["learning_rate"].item())
    for update in (first, second):
        torch.manual_seed(1)
        train(update, batch)
    assert torch.equal(first.policy.flat, second.policy.flat)
    assert second.version == 8
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_fault_d7_state_of_another_network_is_refused_and_changes_nothing() -> None:
    saved = Update(make_policy(BOX, normalize_returns=False), learner_config())
    saved.version = 9
    update = Update(make_policy(DISCRETE), learner_config())
    before = update.policy.flat.clone()
    with pytest.raises(CheckpointError) as caught:
        update.load_state_dict(saved.state_dict())
    for line in (
        r"policy.policy_head.weight: expected float32[3, 16], found float32[2, 16]",
        r"policy.distribution.log_std: not expected, found float32[2]",
        r"statistics.returns.mean: missing, expected float64[]",
        r"optimizer.exp_avg: expected float32",
    ):
        assert line in str(caught.value)
    assert torch.equal(update.policy.flat, before)
    assert update.version == 0
