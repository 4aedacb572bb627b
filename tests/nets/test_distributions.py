"""Actions and masks of the policy against literal values and torch.distributions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sf.config import ModelConfig
from sf.nets.categorical import Categorical
from sf.nets.gaussian import DiagonalGaussian
from sf.policy import ActorCritic
from sf.spaces import ActionSpec, LeafSpec
from tests.helpers.networks import box, cases, discrete, make_policy


@pytest.mark.parametrize(
    ("action", "config"),
    [
        (discrete(6), {}),
        (discrete(6), {"actor_critic_share_weights": False}),
        (box(3), {}),
        (box(3), {"adaptive_stddev": True}),
    ],
)
def test_recorded_log_probability_is_exactly_that_of_training(action: ActionSpec, config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    policy = make_policy(action, **config)
    observations = {"obs": torch.randn(64, 4)}
    step = policy.act(observations)
    evaluation = policy.evaluate(observations, step.action.clone())
    assert torch.equal(evaluation.log_probs.detach(), step.info.log_probability)
    torch.testing.assert_close(policy.values(observations), step.info.value_prediction)


def test_same_seed_same_actions() -> None:
    policy = make_policy(box(64))
    observations = {"obs": torch.randn(8, 4)}

    def draw(seed: int) -> Tensor:
        actions: Tensor = policy.act(observations, generator=torch.Generator().manual_seed(seed)).action
        return actions

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))


def test_greedy_action_is_the_mode() -> None:
    categorical, gaussian = make_policy(discrete(5)), make_policy(box(2))
    observations = {"obs": torch.randn(9, 4)}
    step = categorical.act(observations, greedy=True)
    params = categorical.evaluate(observations, step.action.clone()).action_params
    assert torch.equal(step.action, params.argmax(-1))
    step = gaussian.act(observations, greedy=True)
    params = gaussian.evaluate(observations, step.action.clone()).action_params
    torch.testing.assert_close(step.action, params.detach())
    assert step.state.shape == (9, 0)


def sample(
    distribution: Categorical | DiagonalGaussian, params: Tensor, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    return distribution.sample(params, distribution.noise(len(params), generator))


def test_categorical_frequencies() -> None:
    logits = torch.tensor([0.0, 1.0, -2.0, 0.5]).repeat(200_000, 1)
    actions, _ = sample(Categorical((4,), is_scalar=True), logits, torch.Generator().manual_seed(0))
    frequencies = torch.bincount(actions, minlength=4) / len(actions)
    torch.testing.assert_close(frequencies, logits[0].softmax(-1), atol=0.004, rtol=0)


@pytest.mark.parametrize("num_actions", [1, 2, 1000])
def test_categorical_never_leaves_its_range(num_actions: int) -> None:
    logits = 5 * torch.randn(20_000, num_actions)
    actions, log_probs = sample(Categorical((num_actions,), is_scalar=True), logits)
    assert actions.min() >= 0
    assert actions.max() < num_actions
    assert torch.isfinite(log_probs).all()


def test_categorical_against_torch_distributions() -> None:
    logits = torch.randn(50, 7, requires_grad=True)
    actions = torch.randint(0, 7, (50,))
    log_probs, entropy = Categorical((7,), is_scalar=True).evaluate(logits, actions)
    distribution: Any = torch.distributions.Categorical(logits=logits)
    expected = distribution.log_prob(actions), distribution.entropy()
    torch.testing.assert_close((log_probs, entropy), expected)
    weights = torch.randn(2, 50)
    found_gradient, expected_gradient = (
        torch.autograd.grad((weights[0] * a + weights[1] * b).sum(), logits)
        for a, b in ((log_probs, entropy), expected)
    )
    torch.testing.assert_close(found_gradient, expected_gradient)


@pytest.mark.parametrize("adaptive", [False, True])
def test_gaussian_against_torch_distributions(adaptive: bool) -> None:
    distribution = DiagonalGaussian(3, ModelConfig(initial_stddev=0.5, adaptive_stddev=adaptive))
    params = torch.randn(50, distribution.num_params).clamp(-2.0, 2.0)  # within the limits of deviations
    mean = params[:, :3]
    std = 0.5 * params[:, 3:].exp() if adaptive else torch.full((50, 3), 0.5)
    actions = torch.randn(50, 3)
    expected: Any = torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)
    log_probs, entropy = distribution.evaluate(params, actions)
    torch.testing.assert_close(log_probs, expected.log_prob(actions))
    torch.testing.assert_close(entropy, expected.entropy())


def test_gaussian_samples_have_the_right_moments() -> None:
    distribution = DiagonalGaussian(2, ModelConfig(initial_stddev=0.3))
    mean = torch.tensor([1.0, -2.0]).repeat(100_000, 1)
    actions, _ = sample(distribution, mean, torch.Generator().manual_seed(0))
    torch.testing.assert_close(actions.mean(0), mean[0], atol=0.01, rtol=0)
    torch.testing.assert_close(actions.std(0).detach(), torch.full((2,), 0.3), atol=0.01, rtol=0)


@pytest.mark.parametrize(("inputs", "expected"), [*cases("C23"), *cases("C25")])
def test_c23_c25_log_probability_at_the_mean(inputs: Any, expected: Any) -> None:
    distribution = DiagonalGaussian(inputs["dims"], ModelConfig(initial_stddev=inputs["std"]))
    mean = torch.zeros(1, inputs["dims"])
    log_probs, entropy = distribution.evaluate(mean, mean)
    assert log_probs.item() == pytest.approx(expected["log_prob"], abs=1e-5)
    if "entropy" in expected:
        assert entropy.item() == pytest.approx(expected["entropy"], abs=1e-5)


@pytest.mark.parametrize(("inputs", "expected"), cases("C24"))
def test_c24_initial_entropy(inputs: Any, expected: Any) -> None:
    policy = make_policy(box(inputs["dims"]), initial_stddev=math.exp(inputs["log_std"]))
    evaluation = policy.evaluate({"obs": torch.randn(3, 4)}, torch.randn(3, inputs["dims"]))
    assert evaluation.entropy.tolist() == pytest.approx([expected["entropy"]] * 3, abs=1e-5)


@pytest.mark.parametrize(("inputs", "expected"), [c for c in cases("B10") if c.values[0]["info_spec"] == "empty"])
def test_b10_uniform_categorical(inputs: Any, expected: Any) -> None:
    logits = torch.tensor(inputs["probs"]).log().unsqueeze(0)
    _, log_probs = sample(Categorical((5,), is_scalar=True), logits)
    assert log_probs.item() == pytest.approx(expected["log_probability"], abs=1e-6)


@pytest.mark.parametrize(("inputs", "expected"), cases("B12"))
def test_b12_density_above_one(inputs: Any, expected: Any) -> None:
    distribution = DiagonalGaussian(1, ModelConfig(initial_stddev=inputs["scale"]))
    log_probs, _ = distribution.evaluate(torch.tensor([[inputs["loc"]]]), torch.tensor([[inputs["value"]]]))
    assert log_probs.item() == pytest.approx(expected["log_probability"], abs=1e-6)


def masked_policy(num_actions: int) -> ActorCritic:
    return make_policy(
        discrete(num_actions), {"obs": LeafSpec((4,), "float32"), "action_mask": LeafSpec((num_actions,), "int8")}
    )


@pytest.mark.parametrize(("inputs", "expected"), cases("C-X4"))
def test_cx4_masked_categorical(inputs: Any, expected: Any) -> None:
    policy = masked_policy(3)
    with torch.no_grad():
        policy.policy_head.bias.copy_(torch.tensor(inputs["logits"]))
        policy.policy_head.weight.zero_()
    observations = {"obs": torch.randn(1, 4), "action_mask": torch.tensor([inputs["mask"]], dtype=torch.int8)}
    evaluation = policy.evaluate(observations, torch.tensor([2]))
    assert evaluation.action_params.softmax(-1)[0].tolist() == pytest.approx(expected["probs"], abs=1e-6)
    assert evaluation.entropy.item() == pytest.approx(expected["entropy"], abs=1e-6)
    torch.autograd.backward((evaluation.entropy + evaluation.log_probs).sum())
    assert policy.policy_head.bias.grad is not None
    assert policy.policy_head.bias.grad[1] == expected["gradient_wrt_masked_logit"]


def test_b18_masked_actions_are_never_drawn() -> None:
    policy = masked_policy(4)
    rows = 10_000
    observations = {
        "obs": torch.randn(rows, 4),
        "action_mask": torch.tensor([0, 1, 0, 1], dtype=torch.int8).repeat(rows, 1),
    }
    step = policy.act(observations)
    assert set(step.action.tolist()) == {1, 3}
    ratio = (policy.evaluate(observations, step.action.clone()).log_probs - step.info.log_probability).exp()
    assert (ratio == 1).all()
