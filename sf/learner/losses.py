"""Terms of losses, and the numbers that tell how far the policy has moved. Tensors in, tensors out."""

from __future__ import annotations

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.peers import ALONE, Peers

RATIO_LIMITS = (0.05, 20.0)
"""Of the reciprocal form, as in Sample Factory 2."""


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
