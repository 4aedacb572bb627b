"""The terms of the PPO loss against literal values and finite expectations."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.config import LearnerConfig
from sf.learner.dataset import Transitions
from sf.learner.losses import (
    clip_range,
    clipped_policy_loss,
    divergences,
    explained_variance,
    limited_ratios,
    normalize_advantages,
    value_loss,
)
from sf.learner.metrics import SHARED, combined, policy_change
from sf.learner.ppo import PPO
from sf.learner.propagation import Recorded
from sf.policy import Evaluation

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())


def cases(row: str) -> list[Any]:
    return [pytest.param(c["inputs"], c["expected"], id=f"{row}-{i}") for i, c in enumerate(ORACLES[row]["cases"])]


@pytest.mark.parametrize(("inputs", "expected"), cases("C7"))
def test_c7_advantages_are_normalized(inputs: Any, expected: Any) -> None:
    normalized = normalize_advantages(torch.tensor(inputs["advantages"], dtype=torch.float32), inputs["ddof"])
    assert normalized.tolist() == pytest.approx(expected["normalized"], abs=1e-6)


@pytest.mark.parametrize("advantages", [[3.0], [2.0, 2.0, 2.0]])
def test_c7_equal_advantages_become_zero(advantages: list[float]) -> None:
    assert normalize_advantages(torch.tensor(advantages)).tolist() == [0.0] * len(advantages)


@pytest.mark.parametrize(("inputs", "expected"), cases("C8"))
def test_c8_clipped_policy_loss(inputs: Any, expected: Any) -> None:
    advantages, ratios = torch.tensor([float(inputs["advantage"])]), torch.tensor([inputs["ratio"]])
    assert clipped_policy_loss(advantages, ratios, 1 - inputs["clip"], 1 + inputs["clip"]).item() == pytest.approx(
        expected["loss"], abs=1e-6
    )


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"),
    [
        (1.0, 1.5, -1.2),  # clipped to 1.2
        (-1.0, 1.5, 1.5),
        (-1.0, 0.5, 1 / 1.2),  # clipped to 1/1.2, not to 0.8
        (-1.0, 50.0, 20.0),  # limited to 20
        (1.0, 0.01, -0.05),  # limited to 0.05
    ],
)
def test_c8_reciprocal_form(advantage: float, ratio: float, loss: float) -> None:
    config = LearnerConfig(ppo_clip_form="reciprocal", ppo_clip_ratio=0.2)
    ratios = limited_ratios(torch.tensor([ratio]).log(), config)
    assert clipped_policy_loss(torch.tensor([advantage]), ratios, *clip_range(config)).item() == pytest.approx(loss)


@pytest.mark.parametrize(("inputs", "expected"), cases("C9"))
def test_c9_clipped_value_loss_and_its_gradient(inputs: Any, expected: Any) -> None:
    values = torch.tensor([inputs["new_value"]], requires_grad=True)
    old_values, targets = torch.tensor([inputs["old_value"]]), torch.tensor([inputs["return"]])
    loss = value_loss(values, old_values, targets, inputs["clip"])
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, values)
    assert gradient.item() == pytest.approx(expected["gradient_wrt_new_value"], abs=1e-6)


def test_c9_value_clipping_can_be_switched_off() -> None:
    values, old_values, targets = torch.tensor([1.4]), torch.tensor([1.0]), torch.tensor([1.6])
    assert value_loss(values, old_values, targets, 0.0).item() == pytest.approx(0.5 * 0.04)


def random_minibatch(n: int, dtype: torch.dtype) -> tuple[Evaluation, Transitions]:
    """Ratios and values well inside and well outside the clip ranges."""
    torch.manual_seed(0)
    log_probs, entropy, values, advantages, targets, returns = torch.randn(6, n, dtype=dtype)
    evaluation = Evaluation(log_probs, entropy, values, torch.zeros(n, 2))
    noise = 0.3 * torch.randn(2, n, dtype=dtype)
    noise[0, : n // 10] *= 20
    minibatch = Transitions({}, torch.zeros(n), log_probs + noise[0], values + noise[1], advantages, targets, returns)
    return evaluation, minibatch


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"ppo_clip_value": 0.0},
        {"ppo_clip_value": 0.2},
        {"kl_loss_coeff": 0.3},
        {"ppo_clip_form": "reciprocal"},
        {"ppo_clip_ratio_high": 0.4},
        {"ppo_clip_form": "reciprocal", "ppo_clip_ratio_high": 0.05},
        {"advantage_ddof": 0},
        {"normalize_advantages": False, "exploration_loss_coeff": 0.0, "value_loss_coeff": 2.0},
    ],
)
def test_gradients_are_those_of_the_losses(config: dict[str, Any]) -> None:
    evaluation, minibatch = random_minibatch(1000, torch.float64)
    for output in evaluation[:3]:
        output.requires_grad_()
    algorithm = PPO(LearnerConfig(**config))
    total = algorithm.loss(evaluation, minibatch).total
    expected = torch.autograd.grad(total, evaluation[:3], materialize_grads=True)
    gradients = algorithm.gradients(evaluation, minibatch)
    for found, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted)
    Recorded(lambda: evaluation, algorithm).backward(evaluation, minibatch)
    for output, gradient in zip(evaluation[:3], gradients, strict=True):
        assert output.grad is not None
        assert torch.equal(output.grad, gradient)


@pytest.mark.parametrize("config", [{}, {"kl_loss_coeff": 0.3}])
def test_c10_total_is_linear_in_each_coefficient(config: dict[str, Any]) -> None:
    evaluation, minibatch = random_minibatch(64, torch.float32)
    log_ratios = evaluation.log_probs - minibatch.behavior_log_probs
    small = 1e-3
    base = LearnerConfig(value_loss_coeff=0.5, exploration_loss_coeff=0.01, **config)
    losses = PPO(base).loss(evaluation, minibatch)
    terms = {
        "value_loss_coeff": losses.terms["value_loss"],
        "exploration_loss_coeff": -evaluation.entropy.mean(),
        "kl_loss_coeff": divergences(log_ratios)[2].mean(),
    }
    for name, term in terms.items():
        changed = LearnerConfig(**{**vars(base), name: getattr(base, name) + small})
        difference = PPO(changed).loss(evaluation, minibatch).total - losses.total
        assert difference.item() == pytest.approx(small * term.item(), rel=1e-2, abs=1e-6), name
    weights = {"policy_loss": 1.0, "value_loss": 0.5, "exploration_loss": 1.0, "kl_loss": 1.0}
    weighted = sum(weights[name] * term.item() for name, term in losses.terms.items())
    assert losses.total.item() == pytest.approx(weighted, abs=1e-6)


def test_c12_divergences_and_clip_fraction() -> None:
    inputs, expected = (ORACLES["C12"]["cases"][0][part] for part in ("inputs", "expected"))
    ratios = torch.tensor(inputs["ratios"])
    k1, k2, k3 = (k.mean().item() for k in divergences(ratios.log()))
    assert k1 == pytest.approx(expected["old_approx_kl"], abs=1e-6)
    assert k2 == pytest.approx(expected["half_mean_squared_log_ratio"], abs=1e-6)
    assert k3 == pytest.approx(expected["approx_kl"], abs=1e-6)
    evaluation, minibatch = random_minibatch(len(ratios), torch.float64)
    minibatch = replace(minibatch, behavior_log_probs=evaluation.log_probs.detach() - ratios.log())
    clipped = PPO(LearnerConfig(ppo_clip_ratio=inputs["clip"])).clipped(evaluation, minibatch)
    assert clipped.double().mean().item() == expected["clipfrac"]


def test_c12_k3_is_never_negative_near_zero() -> None:
    k3 = divergences(torch.linspace(-1e-4, 1e-4, 1001))[2]
    assert k3.min() >= 0


def test_c12_each_number_is_logged_under_its_own_name() -> None:
    evaluation, minibatch = random_minibatch(500, torch.float64)
    log_ratios = evaluation.log_probs - minibatch.behavior_log_probs
    ratios = log_ratios.exp()
    found = policy_change(evaluation, minibatch, PPO(LearnerConfig(ppo_clip_ratio=0.2)))
    expected = {
        "entropy": evaluation.entropy.mean(),
        "old_approx_kl": (-log_ratios).mean(),
        "half_mean_squared_log_ratio": (log_ratios**2).mean() / 2,
        "approx_kl": (ratios - 1 - log_ratios).mean(),
        "kl_divergence": (ratios - 1 - log_ratios).mean(),
        "kl_divergence_max": (ratios - 1 - log_ratios).max(),
        "fraction_clipped": ((ratios < 0.8) | (ratios > 1.2)).double().mean(),
        "ratio_min": ratios.min(),
        "ratio_max": ratios.max(),
    }
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value.item(), rel=1e-5), name


@pytest.mark.parametrize(("inputs", "expected"), cases("C12")[1:])
def test_c12_explained_variance(inputs: Any, expected: Any) -> None:
    values, returns = (torch.tensor(inputs[name], dtype=torch.float32) for name in ("values", "returns"))
    found = explained_variance(values, returns).item()
    if expected["explained_variance"] == "nan":
        assert math.isnan(found)
    else:
        assert found == pytest.approx(expected["explained_variance"], abs=1e-6)


def test_c12_shares_are_combined_by_their_sizes_and_one_that_is_no_number_is_left_out() -> None:
    def share(size: float, **values: float) -> tuple[list[float], list[float]]:
        return [values.get(name, 0.0) for name in SHARED], [size if name in values else 0.0 for name in SHARED]

    first = share(3, loss=1.0, ratio_min=0.5, ratio_max=2.0, explained_variance=math.nan)
    second = share(1, loss=5.0, ratio_min=0.75, ratio_max=4.0, explained_variance=0.25)
    expected = {"loss": 2.0, "ratio_min": 0.5, "ratio_max": 4.0, "explained_variance": 0.25}
    assert combined(SHARED, [first, second]) == expected
    assert math.isnan(combined(SHARED, [first, share(1)])["explained_variance"]), "no share is a number"
