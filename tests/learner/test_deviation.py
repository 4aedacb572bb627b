"""The deviation of Box actions: its limits, and its curve."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sf.config import ModelConfig
from sf.learner.update import Update
from sf.nets.categorical import Categorical
from sf.nets.gaussian import DiagonalGaussian
from sf.spaces import ActionColumn, ActionSpec
from tests.helpers.updates import BOX, DISCRETE, act, learner_config, make_policy, one_thread_and_seed, train

MIXED = ActionSpec((ActionColumn(num_choices=3), ActionColumn(low=-1.0, high=1.0)))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread_and_seed()


@pytest.mark.parametrize("action", [BOX, MIXED])
@pytest.mark.parametrize("settings", [{}, {"adaptive_stddev": True}, {"initial_stddev": 20.0}])
def test_an_entropy_bonus_does_not_widen_actions_without_limit(action: ActionSpec, settings: dict[str, Any]) -> None:
    """Rewards are nothing but noise, so the bonus alone decides."""
    policy = make_policy(action, **settings)
    flags = learner_config(exploration_loss_coeff=10.0, learning_rate=0.3, num_epochs=60, ppo_clip_ratio=1e9)
    update = Update(policy, flags)
    update.want_summary = True
    train(update, act(policy))
    most = 148.4 if "adaptive_stddev" in settings else 7.389 * max(1.0, settings.get("initial_stddev", 1.0))
    assert not isinstance(policy.distribution, Categorical)
    params = policy.act({"obs": torch.randn(50, 4)}).info.action_params
    stddev = policy.distribution.stddev(params)
    assert stddev.max().item() <= most * 1.001
    assert stddev.max().item() > 0.9 * most
    assert update.summary()["stddev"] == pytest.approx(most, rel=0.1)


def test_the_limits_hold_for_the_smallest_deviation_too() -> None:
    distribution = make_policy(BOX).distribution
    assert isinstance(distribution, DiagonalGaussian)
    assert distribution.log_std is not None
    with torch.no_grad():
        distribution.log_std.fill_(-50.0)
    distribution.limit_stddev()
    assert distribution.log_std.tolist() == [-10.0, -10.0]


@pytest.mark.parametrize(("initial", "highest"), [(1.0, 2.0), (0.1, 2.0), (math.e, 3.0)])
def test_the_highest_deviation_leaves_room_above_the_first_one(initial: float, highest: float) -> None:
    assert ModelConfig(initial_stddev=initial).log_stddev_limits == pytest.approx((-10.0, highest))


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_curve_is_the_mean_deviation(adaptive: bool) -> None:
    policy = make_policy(BOX, initial_stddev=0.5, adaptive_stddev=adaptive)
    update = Update(policy, learner_config(learning_rate=1e-9))
    update.want_summary = True
    batch = act(policy)
    seen = policy.act({"obs": batch.observations["obs"][:-1].flatten(0, 1)}).info.action_params
    train(update, batch)
    expected = 0.5 if not adaptive else (0.5 * seen[:, 2:].exp()).mean().item()
    assert update.summary()["stddev"] == pytest.approx(expected, rel=1e-5)


def test_choices_have_no_such_curve() -> None:
    policy = make_policy(DISCRETE)
    update = Update(policy, learner_config())
    update.want_summary = True
    train(update, act(policy))
    assert "stddev" not in update.summary()


@pytest.mark.parametrize("action", [BOX, MIXED])
def test_deviations_of_an_older_checkpoint_are_limited_before_the_policy_acts(
    action: ActionSpec, caplog: pytest.LogCaptureFixture
) -> None:
    update = Update(make_policy(action), learner_config())
    state = {name: tensor.clone() for name, tensor in update.state_dict().items()}
    update.load_state_dict(state)
    assert not caplog.records
    (name,) = (name for name in state if name.endswith("log_std"))
    state[name].fill_(math.log(20.0))
    update.load_state_dict(state)
    assert update.state_dict()[name].tolist() == [2.0] * len(state[name])
    assert "beyond the limits 4.5e-05 to 7.4" in caplog.text
