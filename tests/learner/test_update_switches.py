"""Switches of the update: early stop, and the check of the first ratios."""

from __future__ import annotations

import pytest
import torch

from sf.errors import InternalError
from sf.learner.update import Update
from tests.helpers.updates import act, learner_config, make_policy, train


@pytest.mark.parametrize(("target_kl", "epochs"), [(0.01, 1), (0.0, 4), (1e9, 4)])
def test_cx3_iteration_ends_after_the_epoch_that_went_too_far(target_kl: float, epochs: int) -> None:
    torch.manual_seed(0)
    config = learner_config(num_epochs=4, num_batches_per_epoch=3, learning_rate=1.0, target_kl=target_kl)
    update = Update(make_policy(), config)
    statistics = update.policy.observation_normalizers["obs"].mean.clone()
    assert len(train(update, act(update.policy))) == 3 * epochs
    assert not torch.equal(update.policy.observation_normalizers["obs"].mean, statistics), "folded in at the end"


def test_cr1_first_ratios_are_one_and_logged() -> None:
    update = Update(make_policy(), learner_config(num_epochs=3, num_batches_per_epoch=2, strict=True))
    update.want_summary = True
    for _ in range(3):
        train(update, act(update.policy, version=update.version))
        summary = update.summary()
        assert summary["first_ratio_min"] == pytest.approx(1.0, abs=1e-5)
        assert summary["first_ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert summary["ratio_max"] > 1.0 + 1e-5, "that of the last minibatch"


@pytest.mark.parametrize(("offset", "shown"), [(0.01, r"0\.00995"), (2e-5, r"(1.9\d*|2)e-05")])
def test_cr1_strict_refuses_other_probabilities_of_an_unchanged_policy(offset: float, shown: str) -> None:
    update = Update(make_policy(), learner_config(strict=True))
    batch = act(update.policy)
    batch.behavior_log_probs[2, 3] += offset
    with pytest.raises(InternalError, match=rf"strict=True: at version 0 the policy has not changed .* off by {shown}"):
        train(update, batch)


def test_cr1_strict_does_not_mind_a_lag() -> None:
    update = Update(make_policy(), learner_config(strict=True))
    batch = act(update.policy)
    batch.behavior_log_probs.add_(0.01)
    batch.policy_version.sub_(1)
    assert len(train(update, batch)) == 1
