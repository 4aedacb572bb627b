"""The terms of the PPO loss, and the numbers that tell how far the policy has moved. Tensors in, tensors out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.dataset import Transitions
from sf.policy import Evaluation


@dataclass(frozen=True)
class Losses:
    """The terms of one minibatch; scalars with gradient."""

    policy: Tensor
    value: Tensor
    exploration: Tensor
    """Weighted and negative, so that entropy lowers it."""
    kl: Tensor
    """Weighted."""
    total: Tensor


def ppo_losses(evaluation: Evaluation, log_ratios: Tensor, minibatch: Transitions, config: LearnerConfig) -> Losses:
    """Policy loss + value_loss_coeff · value loss - exploration_loss_coeff · entropy + kl_loss_coeff · KL.

    Args:
        evaluation: of the minibatch under the present weights, [N].
        log_ratios: [N] log-probability now minus when acting, with gradient.
        minibatch: N transitions.
        config: the coefficients.
    """
    advantages = normalize_advantages(minibatch.advantages) if config.normalize_advantages else minibatch.advantages
    policy = clipped_policy_loss(advantages, log_ratios.exp(), config.ppo_clip_ratio)
    value = value_loss(
        evaluation.normalized_values, minibatch.old_values, minibatch.value_targets, config.ppo_clip_value
    )
    exploration = -config.exploration_loss_coeff * evaluation.entropy.mean()
    if config.kl_loss_coeff > 0:
        kl = config.kl_loss_coeff * divergences(log_ratios)[2].mean()
    else:
        kl = torch.zeros_like(policy)
    return Losses(policy, value, exploration, kl, policy + config.value_loss_coeff * value + exploration + kl)


def normalize_advantages(advantages: Tensor) -> Tensor:
    """(A - mean) / (std + 1e-8) with the sample standard deviation; [N]."""
    # One number has no sample deviation; its advantage is then 0.
    correction = 1 if advantages.numel() > 1 else 0
    std, mean = torch.std_mean(advantages, correction=correction)
    return (advantages - mean) / (std + 1e-8)


def clipped_policy_loss(advantages: Tensor, ratios: Tensor, clip: float) -> Tensor:
    """mean(max(-A·r, -A·clip(r, 1 - clip, 1 + clip))) (Schulman et al. 2017, arXiv:1707.06347, equation 7)."""
    return -torch.minimum(advantages * ratios, advantages * ratios.clamp(1.0 - clip, 1.0 + clip)).mean()


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
