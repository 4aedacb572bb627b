"""The parts of a step in C, against the ones of torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sf.config import LearnerConfig
from sf.learner.dataset import Transitions
from sf.learner.losses import normalize_advantages
from sf.learner.optimizer import Adam, FlatAdam, clip_gradient
from sf.learner.ppo import PPO
from sf.learner.small_steps import SmallSteps, small_steps
from sf.policy import Evaluation
from tests.helpers.updates import make_policy


@pytest.fixture
def steps() -> SmallSteps:
    if (found := small_steps(LearnerConfig())) is None:
        pytest.skip("no C compiler")
    return found


def test_the_flag_leaves_them_out() -> None:
    assert small_steps(LearnerConfig(native_update=False)) is None


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("num", [2, 5, 1000])
def test_normalized_advantages(steps: SmallSteps, num: int, ddof: int) -> None:
    advantages = 1e3 + 7 * torch.randn(num, generator=torch.Generator().manual_seed(num))
    torch.testing.assert_close(
        steps.normalize(advantages, ddof), normalize_advantages(advantages, ddof), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"ppo_clip_form": "reciprocal", "ppo_clip_ratio": 0.3},
        {"ppo_clip_value": 0.0, "exploration_loss_coeff": 0.0},
        {"kl_loss_coeff": 0.4, "ppo_clip_ratio_high": 0.5, "value_loss_coeff": 2.0},
    ],
)
def test_derivatives_of_ppo(steps: SmallSteps, flags: dict[str, Any]) -> None:
    """Ratios from 0 to infinity, with advantages of both signs, and values on both sides of the limits."""
    config = LearnerConfig(**{"exploration_loss_coeff": 0.01, **flags})
    random = torch.Generator().manual_seed(3)
    old = torch.randn(400, generator=random)
    apart = torch.cat([torch.linspace(-30.0, 30.0, 200), 0.3 * torch.randn(200, generator=random)])
    apart[:3] = torch.tensor([0.0, 100.0, -200.0])
    values, old_values, targets, advantages = torch.randn(4, 400, generator=random).unbind()
    evaluation = Evaluation(old + apart, torch.ones(400), values, torch.zeros(400, 1))
    minibatch = Transitions({}, old, old, old_values, advantages, targets, targets)
    in_c, in_torch = PPO(config), PPO(LearnerConfig(**{**vars(config), "native_update": False}))
    found, right = (algorithm.gradients(evaluation, minibatch) for algorithm in (in_c, in_torch))
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9)
    if config.ppo_clip_value > 0:
        assert (found.normalized_values == 0.0).any()


def test_the_clip_range_of_now_counts(steps: SmallSteps) -> None:
    """A ratio within the first range and outside the last one."""
    algorithm = PPO(LearnerConfig(ppo_clip_anneal=True, ppo_clip_ratio=0.2, exploration_loss_coeff=0.0))
    one, zero = torch.ones(1), torch.zeros(1)
    evaluation = Evaluation(torch.full((1,), math.log(1.1)), zero, zero, torch.zeros(1, 1))
    minibatch = Transitions({}, zero, zero, zero, one, zero, zero)
    assert algorithm.gradients(evaluation, minibatch).log_probs.item() == pytest.approx(-1.1)
    algorithm.set_progress(0.9)
    assert algorithm.gradients(evaluation, minibatch).log_probs.item() == 0.0


@pytest.mark.parametrize("most", [0.0, 0.5, 1e6])
@pytest.mark.parametrize("num", [1, 255, 5000])
def test_limited_norm(steps: SmallSteps, num: int, most: float) -> None:
    gradient = torch.randn(num, generator=torch.Generator().manual_seed(num))
    right = gradient.clone()
    assert steps.clip(gradient, most) == pytest.approx(clip_gradient(right, most).item(), rel=1e-6)
    torch.testing.assert_close(gradient, right, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_norm_that_is_not_finite_is_seen(steps: SmallSteps, broken: float) -> None:
    gradient = torch.ones(40)
    gradient[33] = broken
    assert not math.isfinite(steps.clip(gradient, 0.5))


def test_adam() -> None:
    """Two hundred steps; gradients of ten orders of magnitude, some of them zero."""
    policy = make_policy()
    config = LearnerConfig(adam_beta1=0.8, adam_beta2=0.99, adam_eps=1e-5)
    in_c = FlatAdam(policy, config)
    parameters, gradient = policy.flat_parameters.detach().clone(), torch.zeros_like(policy.flat_gradient)
    in_torch = Adam(parameters, gradient, 0.8, 0.99, 1e-5)
    random = torch.Generator().manual_seed(4)
    scale = 10.0 ** torch.linspace(-8, 2, len(gradient))
    for step in range(200):
        gradient.copy_(scale * torch.randn(len(gradient), generator=random))
        gradient[step::7] = 0.0
        policy.flat_gradient.copy_(gradient)
        in_c.step(1e-3)
        in_torch.step(1e-3)
    assert in_c.num_steps == 200
    torch.testing.assert_close(policy.flat_parameters.detach(), parameters, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(in_c.exp_avg_sq, in_torch.exp_avg_sq, rtol=1e-5, atol=0.0)
