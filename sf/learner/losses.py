"""Terms of losses, and the numbers that tell how far the policy has moved. Tensors in, tensors out."""

from __future__ import annotations

import torch
from torch import Tensor

from sf.config import LearnerConfig

RATIO_LIMITS = (0.05, 20.0)
"""Limits of the reciprocal form, as in Sample Factory 2."""
MOST_LOG_RATIO = 20.0
"""Ratios above e^20 count as e^20, without a derivative. In float32 e^89 is infinite, and 0 times that is no number."""


def normalize_advantages(advantages: Tensor, ddof: int = 1, std_mean: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """(A - mean) / (std + 1e-8) with the sample deviation (ddof 1) or that of the population (ddof 0); [N].

    A single advantage becomes 0.

    Args:
        advantages: [N] of this learner.
        ddof: of the deviation.
        std_mean: deviation and mean of the advantages of all learners, where there are several.
    """
    if std_mean is None:
        std_mean = torch.std_mean(advantages, correction=ddof if advantages.numel() > 1 else 0)
    std, mean = std_mean
    return (advantages - mean) / (std + 1e-8)


def clip_range(config: LearnerConfig) -> tuple[float, float]:
    """Lower and upper limit of the probability ratio."""
    width = config.ppo_clip_ratio
    high = 1.0 + (width if config.ppo_clip_ratio_high is None else config.ppo_clip_ratio_high)
    return (1.0 / (1.0 + width) if config.ppo_clip_form == "reciprocal" else 1.0 - width), high


def bounded(log_ratios: Tensor) -> Tensor:
    """The logarithms of ratios that enter a loss, so that the ratios and their derivatives are finite."""
    return log_ratios.clamp(max=MOST_LOG_RATIO)


def limited_ratios(log_ratios: Tensor, config: LearnerConfig) -> Tensor:
    """The ratios that enter the loss: up to e^`MOST_LOG_RATIO`, in the reciprocal form those within `RATIO_LIMITS`."""
    ratios = bounded(log_ratios).exp()
    return ratios.clamp(*RATIO_LIMITS) if config.ppo_clip_form == "reciprocal" else ratios


def clipped_gains(advantages: Tensor, ratios: Tensor, low: float, high: float, dual_clip: float = 0.0) -> Tensor:
    """[N] min(A·r, A·clip(r, low, high)) (Schulman et al. 2017, arXiv:1707.06347, equation 7).

    With a dual clip c it is max(that, c·A) where A < 0 (Ye et al. 2020, arXiv:1912.09729, equation 3). So a large ratio
    does not drive the policy away without bound.
    """
    gains = torch.minimum(advantages * ratios, advantages * ratios.clamp(low, high))
    if dual_clip > 0:
        gains = torch.where(advantages < 0, torch.maximum(gains, dual_clip * advantages), gains)
    return gains


def clipped_policy_loss(advantages: Tensor, ratios: Tensor, low: float, high: float) -> Tensor:
    """mean(max(-A·r, -A·clip(r, low, high)))."""
    return -clipped_gains(advantages, ratios, low, high).mean()


def truncated_gains(advantages: Tensor, log_ratios: Tensor, limit: float) -> Tensor:
    """[N] A·min(r, limit), whose gradient is A·min(r, limit)·∇log π: truncated weights of a policy gradient.

    A truncated transition goes on to train, with the weight `limit` (Ionides 2008; Espeholt et al. 2018,
    arXiv:1802.01561, section 4.2).
    """
    weights = log_ratios.detach().exp().clamp(max=limit)
    return advantages * weights * (log_ratios - log_ratios.detach()).exp()


def effective_sample_size(num: float, total: float, total_of_squares: float) -> float:
    """(sum of ratios)² / (N · sum of their squares): the share of N transitions that counts, 1 where all are alike."""
    return total * total / (num * total_of_squares)


def interpolated_log_probs(
    behavior: Tensor, present: Tensor, acted: Tensor, proximal_version: int, version: int
) -> Tensor:
    """[N] log-probabilities of a policy between the one that acted and the present one, linear in the version.

    Args:
        behavior: [N] under the policy that acted.
        present: [N] under the present weights.
        acted: [N] versions that acted.
        proximal_version: of the policy in between; transitions that are as new or newer take their own.
        version: of the present weights.
    """
    share = (proximal_version - acted).clamp(min=0) / (version - acted).clamp(min=1)
    return behavior + share * (present - behavior)


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


def divergence(log_ratios: Tensor) -> Tensor:
    """[N] estimates k3 = (r - 1) - log r of the KL divergence, unbiased and never negative; see `divergences`."""
    return torch.expm1(log_ratios) - log_ratios


def divergences(log_ratios: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Estimates of the KL divergence from the policy that acted to the one of now: k1, k2, k3, [N] each.

    k1 = -log r is unbiased but noisy, k2 = (log r)² / 2 is biased, k3 = (r - 1) - log r is unbiased and never negative.
    """
    return -log_ratios, 0.5 * log_ratios.square(), divergence(log_ratios)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var(R - V) / Var(R); nan where all returns are equal."""
    variance = returns.var(correction=0)
    unexplained = (returns - values).var(correction=0)
    return torch.where(variance == 0, torch.nan, 1.0 - unexplained / variance)
