"""The numbers of one minibatch that are logged below ``train/``; computed on the device, read once."""

from __future__ import annotations

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.dataset import Transitions
from sf.learner.losses import clip_fraction, divergences, explained_variance, ppo_losses
from sf.policy import ActorCritic, Evaluation


@torch.no_grad()
def loss_terms(evaluation: Evaluation, minibatch: Transitions, config: LearnerConfig) -> dict[str, Tensor]:
    """The terms of the loss."""
    losses = ppo_losses(evaluation, minibatch, config)
    return {
        "loss": losses.total,
        "policy_loss": losses.policy,
        "value_loss": losses.value,
        "exploration_loss": losses.exploration,
        "kl_loss": losses.kl,
    }


@torch.no_grad()
def policy_change(evaluation: Evaluation, minibatch: Transitions, config: LearnerConfig) -> dict[str, Tensor]:
    """How far the policy is from the one that acted."""
    log_ratios = evaluation.log_probs - minibatch.behavior_log_probs
    ratios = log_ratios.exp()
    k1, k2, k3 = divergences(log_ratios)
    return {
        "entropy": evaluation.entropy.mean(),
        "fraction_clipped": clip_fraction(ratios, config.ppo_clip_ratio),
        "kl_divergence": k3.mean(),
        "kl_divergence_max": k3.max(),
        "old_approx_kl": k1.mean(),
        "half_mean_squared_log_ratio": k2.mean(),
        "approx_kl": k3.mean(),
        "ratio_min": ratios.min(),
        "ratio_mean": (1.0 - ratios).abs().mean(),
        "ratio_max": ratios.max(),
        "max_abs_logprob": evaluation.log_probs.abs().max(),
    }


@torch.no_grad()
def value_change(evaluation: Evaluation, minibatch: Transitions, policy: ActorCritic) -> dict[str, Tensor]:
    """Values in units of the reward, their change since acting, and advantages before normalization."""
    values = policy.denormalize(evaluation.normalized_values)
    deltas = (values - policy.denormalize(minibatch.old_values)).abs()
    advantages = minibatch.advantages
    return {
        "value": values.mean(),
        "value_delta": deltas.mean(),
        "value_delta_max": deltas.max(),
        "explained_variance": explained_variance(minibatch.old_values, minibatch.value_targets),
        "adv_min": advantages.min(),
        "adv_max": advantages.max(),
        "adv_std": advantages.std(correction=0),
    }


@torch.no_grad()
def running_statistics(policy: ActorCritic) -> dict[str, Tensor]:
    """Mean and deviation of each observation leaf, averaged over its elements, and of the returns."""
    normalizers = dict(policy.observation_normalizers)
    if "returns" in normalizers:
        normalizers["obs_returns"] = normalizers.pop("returns")
    if policy.return_normalizer is not None:
        normalizers["returns"] = policy.return_normalizer
    return {
        f"{name}_running_{part}": statistic.mean()
        for name, normalizer in normalizers.items()
        for part, statistic in (("mean", normalizer.mean), ("std", normalizer.std))
    }


class Summary:
    """Collects numbers during a dataset and reads those that are on the device in one transfer at the end."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._numbers: dict[str, float] = {}
        self._clip_fractions: list[Tensor] = []

    def add(self, scalars: dict[str, Tensor]) -> None:
        """Numbers on the device; later ones replace earlier ones of the same name."""
        self._tensors.update(scalars)
        if "fraction_clipped" in scalars:
            self._clip_fractions.append(scalars["fraction_clipped"])

    def add_numbers(self, numbers: dict[str, float]) -> None:
        """Numbers that are known without the device."""
        self._numbers.update(numbers)

    def read(self) -> dict[str, float]:
        """Everything collected; ``clipfrac`` is the average of ``fraction_clipped`` over all minibatches."""
        tensors = dict(self._tensors)
        if self._clip_fractions:
            tensors["clipfrac"] = torch.stack(self._clip_fractions).mean()
        if not tensors:
            return dict(self._numbers)
        values: list[float] = (
            torch.stack([scalar.detach().to(torch.float64) for scalar in tensors.values()]).cpu().tolist()
        )
        return {**self._numbers, **dict(zip(tensors, values, strict=True))}
