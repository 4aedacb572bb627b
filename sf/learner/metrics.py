"""The numbers of one minibatch that are logged below ``train/``; computed on the device, read once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sf.learner.algorithm import Algorithm, Losses
from sf.learner.by_lag import TAGS, ByLag
from sf.learner.dataset import Transitions
from sf.learner.losses import divergences, explained_variance
from sf.learner.minibatches import Ages
from sf.learner.peers import ALONE, Peers
from sf.nets.categorical import Categorical
from sf.policy import ActorCritic, Evaluation

SUMMARY_INTERVALS = ((0, 2.0), (100_000, 60.0), (1_000_000, 120.0))
"""Policy version to seconds; linear in between, constant after."""


def train_summary_interval_s(version: int) -> float:
    """Most seconds between two summaries of training at this policy version; a young run has shorter intervals."""
    for (start, start_s), (end, end_s) in itertools.pairwise(SUMMARY_INTERVALS):
        if version <= end:
            return start_s + (end_s - start_s) * (version - start) / (end - start)
    return SUMMARY_INTERVALS[-1][1]


@torch.no_grad()
def policy_change(evaluation: Evaluation, minibatch: Transitions, algorithm: Algorithm) -> dict[str, Tensor]:
    """How far the policy is from the one that acted."""
    log_ratios = evaluation.log_probs - minibatch.behavior_log_probs
    ratios = log_ratios.exp()
    k1, k2, k3 = divergences(log_ratios)
    return {
        "entropy": evaluation.entropy.mean(),
        "fraction_clipped": algorithm.clipped(evaluation, minibatch).to(torch.float32).mean(),
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
def deviation(evaluation: Evaluation, policy: ActorCritic) -> dict[str, Tensor]:
    """Mean standard deviation of Box actions; nothing where all actions are choices."""
    if isinstance(policy.distribution, Categorical):
        return {}
    return {"stddev": policy.distribution.stddev(evaluation.action_params).mean()}


@torch.no_grad()
def replay_facts(evaluation: Evaluation, minibatch: Transitions, lags: Ages) -> dict[str, Tensor]:
    """Age and importance ratios of a minibatch that was drawn from a buffer (row E20).

    The effective sample size is (sum of ratios)² / (N · sum of squared ratios): the share of the minibatch that counts.
    """
    log_ratios = evaluation.log_probs - minibatch.behavior_log_probs
    ratios = log_ratios.exp()
    return {
        "staleness/batch_min": torch.tensor(lags.min),
        "staleness/batch_mean": torch.tensor(lags.mean),
        "staleness/batch_max": torch.tensor(lags.max),
        "ESS": ratios.sum().square() / (len(ratios) * ratios.square().sum()),
        "max_ratio": ratios.max(),
        "mean_ratio": ratios.mean(),
        "kl_approx": -log_ratios.mean(),
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


class TakenStep(NamedTuple):
    """What is shown of an optimizer step; nothing is computed from it before it turns out to be the last one."""

    evaluation: Evaluation
    """Evaluation of this learner's share of the minibatch, before the step."""
    rows: Transitions
    normalized: Transitions
    """The rows with the advantages that the loss has seen."""
    losses: Losses | None
    """None where the derivatives were written out."""
    lags: Ages
    grad_norm: float
    lr: float
    actual_lr: float


LEAST = ("ratio_min", "adv_min", "first_ratio_min")
MOST = ("kl_divergence_max", "ratio_max", "max_abs_logprob", "value_delta_max", "adv_max", "first_ratio_max")
MEANS = (
    "loss", "entropy", "fraction_clipped", "kl_divergence", "old_approx_kl", "half_mean_squared_log_ratio", "approx_kl",
    "ratio_mean", "value", "value_delta", "explained_variance", "adv_std", "stddev",
)  # fmt: skip
SHARED = LEAST + MOST + MEANS
"""Numbers that each learner computes from its own share; all others are the same for all learners. The terms of the
loss are means too."""


TAKEN = frozenset(SHARED) | {
    "grad_norm", "lr", "actual_lr", "adam_max_second_moment", "skipped_steps", "version_diff_min", "version_diff_avg",
    "version_diff_max", "staleness/batch_min", "staleness/batch_mean", "staleness/batch_max", "ESS", "max_ratio",
    "mean_ratio", "kl_approx", "valids_fraction", "same_policy_fraction", "num_sgd_steps",
} | TAGS  # fmt: skip
"""Names that no term of a loss may have."""


class Summary:
    """Collects numbers during a dataset and reads those that are on the device in one transfer at the end."""

    def __init__(self, loss_terms: Sequence[str] = ()) -> None:
        """Starts empty; `loss_terms` are the names that the algorithm gives the terms of its loss."""
        self._shared = (*SHARED, *loss_terms)
        self._tensors: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        """Transitions behind a number of this learner's share."""
        self._numbers: dict[str, float] = {}
        self.by_lag = ByLag()
        """Numbers by lag of all minibatches of the dataset."""

    def add(self, scalars: dict[str, Tensor]) -> None:
        """Numbers on the device; later ones replace earlier ones of the same name."""
        self._tensors.update(scalars)

    def add_share(self, scalars: dict[str, Tensor], size: int) -> None:
        """The same of this learner's share of a minibatch, with its size."""
        self._tensors.update(scalars)
        self._weights.update(dict.fromkeys(scalars, size))

    def add_numbers(self, numbers: dict[str, float]) -> None:
        """Numbers that are known without the device."""
        self._numbers.update(numbers)

    def read(self, peers: Peers = ALONE) -> dict[str, float]:
        """Everything collected.

        Where a policy has several learners, the shares of all of them count. Smallest and largest values are over all
        shares, and means are weighted with the sizes of the shares.
        """
        read: dict[str, float] = {}
        if tensors := self._tensors:
            numbers = torch.stack([scalar.detach().to(torch.float64) for scalar in tensors.values()]).cpu().tolist()
            read = dict(zip(tensors, numbers, strict=True))
        shares = peers.gather(
            torch.tensor([read.get(name, 0.0) for name in self._shared], dtype=torch.float64),
            torch.tensor([self._weights.get(name, 0.0) for name in self._shared], dtype=torch.float64),
        )
        own = {name: value for name, value in read.items() if name not in self._shared}
        of_all = combined(self._shared, [(value.tolist(), size.tolist()) for value, size in shares])
        return {**self._numbers, **own, **of_all, **self.by_lag.read(peers)}


def combined(names: Sequence[str], shares: list[tuple[list[float], list[float]]]) -> dict[str, float]:
    """The named numbers that any learner has, from the values and the weights of each."""
    combined = {}
    for index, name in enumerate(names):
        some = [(values[index], sizes[index]) for values, sizes in shares if sizes[index]]
        # A share whose returns are all alike explains nothing of them, and says nothing of the others.
        some = [share for share in some if not math.isnan(share[0])] or some
        if not some:
            continue
        if name in LEAST:
            combined[name] = min(value for value, _ in some)
        elif name in MOST:
            combined[name] = max(value for value, _ in some)
        else:
            total = sum(size for _, size in some)
            combined[name] = sum(value * (size / total) for value, size in some)
    return combined
