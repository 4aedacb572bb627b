"""The update against others: plain A2C at zero lag, and the Adam of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sf.config import LearnerConfig, ModelConfig
from sf.learner.optimizer import FlatAdam, clip_gradient
from sf.learner.update import Update
from sf.policy import ActorCritic
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.helpers.updates import (
    BOX,
    DISCRETE,
    a2c_gradient,
    act,
    learner_config,
    make_policy,
    one_thread_and_seed,
    train,
)


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    one_thread_and_seed()


# ---------------------------------------------------------------------------------------------------------- zero lag


@pytest.mark.parametrize("action", [DISCRETE, BOX])
@pytest.mark.parametrize("num_iterations", [1, 3])
def test_a10d_ratio_is_one_at_zero_lag_also_after_statistics_changed(action: ActionSpec, num_iterations: int) -> None:
    update = Update(make_policy(action), learner_config(learning_rate=0.01))
    update.want_summary = True
    for _ in range(num_iterations):
        train(update, act(update.policy, version=update.version))
    summary = update.summary()
    for extreme in ("ratio_min", "ratio_max"):
        assert summary[extreme] == pytest.approx(1.0, abs=1e-5)
    assert summary["ratio_mean"] == pytest.approx(0.0, abs=1e-5)
    assert summary["fraction_clipped"] == summary["clipfrac"] == 0.0
    assert summary["kl_divergence"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("action", [DISCRETE, BOX])
def test_a10e_gradient_is_that_of_plain_a2c(action: ActionSpec) -> None:
    config = learner_config(max_grad_norm=0.0, learning_rate=1e-8)
    update = Update(make_policy(action), config)
    policy = update.policy
    batch = act(policy)
    expected = a2c_gradient(policy, config, batch)
    train(update, batch)
    # The gradient of the optimizer step is still there, because max_grad_norm=0 leaves it alone.
    scale = expected.abs().max()
    torch.testing.assert_close(policy.flat_gradient / scale, expected / scale, rtol=1e-5, atol=1e-5)


# -------------------------------------------------------------------------------------------------------------- Adam


def test_c3_adam_defaults() -> None:
    optimizer = Update(make_policy(), LearnerConfig()).optimizer
    assert optimizer.eps == 1e-5
    assert (optimizer.beta1, optimizer.beta2) == (0.9, 0.999)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.99)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_c3_adam_is_that_of_torch(betas: tuple[float, float], device: str) -> None:
    """With a rate that changes, and after a resume, when another object has the state."""
    config = learner_config(adam_beta1=betas[0], adam_beta2=betas[1])
    info = EnvInfo("test", 1, {"obs": LeafSpec((4,), "float32")}, DISCRETE)
    policy = ActorCritic(info, ModelConfig(), torch.device(device))
    optimizer = FlatAdam(policy, config)
    reference = torch.nn.Parameter(policy.flat_parameters.detach().clone())
    torch_adam = torch.optim.Adam([reference], betas=betas, eps=config.adam_eps, fused=False)
    for index, size in enumerate((1.0, 1e-3, 10.0, 0.0, 1e-6, 1.0)):
        if index == 3:
            resumed = FlatAdam(policy, config)
            resumed.num_steps = optimizer.num_steps
            resumed.exp_avg.copy_(optimizer.exp_avg)
            resumed.exp_avg_sq.copy_(optimizer.exp_avg_sq)
            optimizer = resumed
        gradient = size * torch.randn_like(reference)
        policy.flat_gradient.copy_(gradient)
        reference.grad = gradient.clone()
        rate = torch_adam.param_groups[0]["lr"] = 1e-3 / (1 + index)
        optimizer.step(rate)
        torch_adam.step()
        torch.testing.assert_close(policy.flat_parameters, reference, rtol=1e-6, atol=1e-7)
    # Fused kernels of CUDA round otherwise; moments of some 100, of a gradient of 10, differ by as much.
    tolerance: dict[str, Any] = {} if device == "cpu" else {"rtol": 1e-4, "atol": 1e-5}
    state = torch_adam.state[reference]
    torch.testing.assert_close(optimizer.exp_avg, state["exp_avg"], **tolerance)
    torch.testing.assert_close(optimizer.exp_avg_sq, state["exp_avg_sq"], **tolerance)


def test_c11_gradient_is_scaled_to_the_largest_norm() -> None:
    gradient = torch.randn(100)
    clipped = gradient.clone()
    norm = clip_gradient(clipped, 0.5)
    assert norm.item() == pytest.approx(gradient.norm().item())
    assert clipped.norm().item() <= 0.5
    torch.testing.assert_close(clipped / clipped.norm(), gradient / gradient.norm())
    short = gradient / gradient.norm() * 0.4
    assert torch.equal(clip_and_return(short, 0.5), short)
    assert torch.equal(clip_and_return(gradient, 0.0), gradient)


def clip_and_return(gradient: Tensor, max_norm: float) -> Tensor:
    clipped = gradient.clone()
    clip_gradient(clipped, max_norm)
    return clipped
