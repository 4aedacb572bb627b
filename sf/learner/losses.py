"""The terms of the PPO loss, and the numbers that tell how far the policy has moved. Tensors in, tensors out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.dataset import Transitions
from sf.learner.peers import ALONE, Peers
from sf.policy import Evaluation

RATIO_LIMITS = (0.05, 20.0)
"""Of the reciprocal form, as in Sample Factory 2."""


@dataclass(frozen=True)
class Losses:
    """The terms of one minibatch; scalars."""

    policy: Tensor
    value: Tensor
    exploration: Tensor
    """Weighted and negative, so that entropy lowers it."""
    kl: Tensor
    """Weighted."""
    total: Tensor


def ppo_losses(evaluation: Evaluation, minibatch: Transitions, config: LearnerConfig) -> Losses:
    """Policy loss + value_loss_coeff · value loss - exploration_loss_coeff · entropy + kl_loss_coeff · KL.

    Args:
        evaluation: of the minibatch under the present weights, [N].
        minibatch: N transitions, with normalized advantages if they should be.
        config: the coefficients.
    """
    log_ratios = evaluation.log_probs - minibatch.behavior_log_probs
    policy = clipped_policy_loss(minibatch.advantages, limited(log_ratios.exp(), config), *clip_range(config))
    value = value_loss(
        evaluation.normalized_values, minibatch.old_values, minibatch.value_targets, config.ppo_clip_value
    )
    exploration = -config.exploration_loss_coeff * evaluation.entropy.mean()
    kl = config.kl_loss_coeff * divergences(log_ratios)[2].mean()
    return Losses(policy, value, exploration, kl, policy + config.value_loss_coeff * value + exploration + kl)


class LossGradients(NamedTuple):
    """Derivatives of the total loss, [N] each."""

    log_probs: Tensor
    entropy: Tensor
    normalized_values: Tensor


@torch.no_grad()
def ppo_gradients(evaluation: Evaluation, minibatch: Transitions, config: LearnerConfig) -> LossGradients:
    """Derivatives of the total of `ppo_losses` with respect to what the network puts out.

    Written by hand, because recording and running these few formulas backwards takes a fifth of an optimizer step of
    512 transitions. A clipped term does not depend on the network, so where it is the larger one the derivative is 0.
    """
    weight = 1.0 / len(minibatch)
    advantages = minibatch.advantages
    ratios = torch.sub(evaluation.log_probs, minibatch.behavior_log_probs).exp_()
    gains = advantages * limited(ratios, config)
    clipped_gains = advantages * ratios.clamp(*clip_range(config))
    constant = gains > clipped_gains
    if config.ppo_clip_form == "reciprocal":
        constant.logical_or_(ratios != limited(ratios, config))
    d_log_probs = gains.masked_fill_(constant, 0.0).mul_(-weight)
    if config.kl_loss_coeff > 0:
        d_log_probs.add_(ratios - 1.0, alpha=weight * config.kl_loss_coeff)

    values, old_values, targets = evaluation.normalized_values, minibatch.old_values, minibatch.value_targets
    errors = values - targets
    if config.ppo_clip_value > 0:
        changes = values - old_values
        clipped_errors = changes.clamp(-config.ppo_clip_value, config.ppo_clip_value).add_(old_values).sub_(targets)
        clipped = (changes.abs_() > config.ppo_clip_value).logical_and_(clipped_errors.abs_() > errors.abs())
        errors.masked_fill_(clipped, 0.0)
    d_values = errors.mul_(weight * config.value_loss_coeff)

    d_entropy = torch.full_like(evaluation.entropy, -weight * config.exploration_loss_coeff)
    return LossGradients(d_log_probs, d_entropy, d_values)


class _WithGradients(torch.autograd.Function):
    """A scalar with these derivatives with respect to the tensors."""

    @staticmethod
    def forward(ctx: Any, gradients: LossGradients, *tensors: Tensor) -> Tensor:
        ctx.gradients = gradients
        return tensors[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.gradients


def propagate(evaluation: Evaluation, gradients: LossGradients) -> None:
    """Adds the derivatives of the loss with respect to the parameters to their gradients.

    `torch.autograd.backward` does so as well, and imports 487 modules to compare the shapes of what it is given.
    """
    loss: Tensor = _WithGradients.apply(  # type: ignore[no-untyped-call]
        gradients, evaluation.log_probs, evaluation.entropy, evaluation.normalized_values
    )
    loss.backward()  # type: ignore[no-untyped-call]


def normalize_advantages(advantages: Tensor, ddof: int = 1, peers: Peers = ALONE) -> Tensor:
    """(A - mean) / (std + 1e-8) with the sample deviation (ddof 1) or that of the population (ddof 0); [N].

    Mean and deviation are those of the advantages of all learners. A single advantage becomes 0.
    """
    std, mean = peers.std_mean(advantages, ddof)
    return (advantages - mean) / (std + 1e-8)


def clip_range(config: LearnerConfig) -> tuple[float, float]:
    """What the probability ratio is clipped to."""
    high = 1.0 + config.ppo_clip_ratio
    return (1.0 / high if config.ppo_clip_form == "reciprocal" else 1.0 - config.ppo_clip_ratio), high


def limited(ratios: Tensor, config: LearnerConfig) -> Tensor:
    """The ratios that enter the loss: all of them, or in the reciprocal form those within `RATIO_LIMITS`."""
    return ratios.clamp(*RATIO_LIMITS) if config.ppo_clip_form == "reciprocal" else ratios


def clipped_policy_loss(advantages: Tensor, ratios: Tensor, low: float, high: float) -> Tensor:
    """mean(max(-A·r, -A·clip(r, low, high))) (Schulman et al. 2017, arXiv:1707.06347, equation 7)."""
    return -torch.minimum(advantages * ratios, advantages * ratios.clamp(low, high)).mean()


def value_loss(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> Tensor:
    """Half the mean squared error; with clip > 0 the larger of it and that of the value kept within `clip` of the old.

    Args:
        values: [N] now, with gradient.
        old_values: [N] when acting.
        targets: [N] returns.
        clip: limit of the change, 0 for none.
    """
    errors = (values - targets).square()
    if clip > 0:
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        errors = torch.maximum(errors, (clipped - targets).square())
    return 0.5 * errors.mean()


def divergences(log_ratios: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Estimates of the KL divergence from the policy that acted to the one of now: k1, k2, k3, [N] each.

    k1 = -log r is unbiased but noisy, k2 = (log r)² / 2 is biased, k3 = (r - 1) - log r is unbiased and never negative.
    """
    return -log_ratios, 0.5 * log_ratios.square(), torch.expm1(log_ratios) - log_ratios


def clip_fraction(ratios: Tensor, clip: float) -> Tensor:
    """Share of transitions whose ratio is outside the clip range."""
    return ((ratios - 1.0).abs() > clip).to(torch.float32).mean()


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var(R - V) / Var(R); nan where all returns are equal."""
    variance = returns.var(correction=0)
    unexplained = (returns - values).var(correction=0)
    return torch.where(variance == 0, torch.nan, 1.0 - unexplained / variance)
