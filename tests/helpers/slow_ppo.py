"""An independent PPO in float64, one transition after the other, written after the documentation and the papers.

It takes the trajectories of a dataset as they were recorded in slots and says what a learner must publish after each
optimizer step. The names of its metrics are those of docs/reference/metrics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sf.config import LearnerConfig
from tests.helpers.recorded import Trajectory
from tests.helpers.slow_network import SlowNetwork
from tests.helpers.slow_returns import Transition, gae, vtrace
from tests.helpers.slow_statistics import SlowStatistics

Draw = Callable[[int], list[int]]
"""A fresh permutation of so many numbers."""


class Published(NamedTuple):
    """What follows an optimizer step."""

    version: int
    vector: Any
    """All parameters and statistics."""
    lags: tuple[float, float, float]
    """Minimum, mean and maximum."""


class Said(NamedTuple):
    """What the network says of a minibatch, [n] each, with gradients."""

    log_probs: Tensor
    entropies: Tensor
    values: Tensor
    """In the units of the value head."""
    ratios: Tensor


class SlowPPO:
    """One learner of one policy."""

    def __init__(self, network: SlowNetwork, config: LearnerConfig, policy_id: int = 0) -> None:
        self.network, self.config, self.policy_id = network, config, policy_id
        self.version = self.num_skipped = self.num_samples = 0
        self.lr = config.initial_rate
        self.first = {name: torch.zeros_like(p) for name, p in network.parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in network.parameters.items()}
        self.statistics = SlowStatistics(config.statistics_initial_count)
        self.metrics: dict[str, float] = {}

    def train(self, dataset: list[Trajectory], draw: Draw, progress: float) -> list[Published]:
        """Everything that is published for a dataset, of which this part of the run lies before."""
        self._anneal(progress)
        columns = [self._transitions(one) for one in dataset if (one.policy_id == self.policy_id).any()]
        own = [s for column in columns for s in column if s.trajectory.policy_id[s.t] == self.policy_id]
        young = [s for s in own if self._is_young(s)]
        self.num_samples += len(own)
        if not young:
            return []
        num_steps = sum(map(len, columns))
        self.metrics = {"valids_fraction": len(young) / num_steps, "same_policy_fraction": len(own) / num_steps}
        skipped_before = self.num_skipped
        if self.config.normalize_rewards:
            self.statistics.scale_rewards(columns, self.config.gamma, lambda s: s in own)
        for column in columns:
            gae(column, self.config)
        published = self._epochs(columns, own, young, draw)
        if self.num_skipped > skipped_before:
            self.statistics.forget_rewards()
        return published

    def _transitions(self, trajectory: Trajectory) -> list[Transition]:
        steps = enumerate(zip(trajectory.policy_version, trajectory.rewards, strict=True))
        return [Transition(trajectory, t, self.version - int(label), float(reward)) for t, (label, reward) in steps]

    def _is_young(self, s: Transition) -> bool:
        return s.lag < self.config.max_policy_lag

    def _epochs(
        self, columns: list[list[Transition]], own: list[Transition], young: list[Transition], draw: Draw
    ) -> list[Published]:
        config, start, skipped_before = self.config, self.version, self.num_skipped
        published: list[Published] = []
        clipped: list[tuple[float, int]] = []
        trained_on: list[tuple[int, float, bool]] = []
        last_epoch: list[float] = []
        for epoch in range(config.epochs):
            if config.with_vtrace:
                for column in columns:
                    vtrace(column, self.network, config)
            minibatches = [part for part in self._minibatches(columns, own, draw) if any(map(self._is_young, part))]
            divergences, has_moved_far = [], False
            for number, minibatch in enumerate(minibatches):
                lags = [s.lag + self.version - start for s in minibatch]
                trained = [s for s in minibatch if self._is_young(s)]
                said = self._say(trained)
                if epoch == number == 0:
                    self._note({"first_ratio_min": said.ratios.min(), "first_ratio_max": said.ratios.max()})
                if not self._step(said, trained, len(young) / len(own)):
                    continue
                divergences.append(self.metrics["approx_kl"])
                ratios = said.ratios.detach()
                ages = [s.lag + self.version - 1 - start for s in trained]
                trained_on += zip(ages, ratios.tolist(), self._is_clipped(ratios).tolist(), strict=True)
                clipped.append((self.metrics["fraction_clipped"], len(trained)))
                if config.lr_schedule == "kl_adaptive_minibatch":
                    self._adapt(divergences[-1])
                ends_epoch = number == len(minibatches) - 1
                has_moved_far = ends_epoch and 0 < config.target_kl < divergences[-1]
                is_last = has_moved_far or (ends_epoch and epoch == config.epochs - 1)
                if is_last and self.num_skipped == skipped_before:
                    self._fold_in(young)
                published.append(Published(self.version, self.network.vector, _min_avg_max(lags)))
                self._note_state(published[-1], clipped)
                self._note(by_lag(trained_on))
            if config.lr_schedule == "kl_adaptive_epoch" and divergences:
                self._adapt(float(np.mean(divergences)))
            last_epoch = divergences
            if has_moved_far:
                break
        if config.lr_schedule == "kl_adaptive_batch" and last_epoch:
            self._adapt(float(np.mean(last_epoch)))
        return published

    # ------------------------------------------------------------------------------------------------------ schedules

    def _anneal(self, progress: float) -> None:
        config = self.config
        if config.lr_schedule == "linear":
            self.lr = config.initial_rate * (1 - progress)
        left = 1 - progress if config.ppo_clip_anneal else 1.0
        self.clip_ratio, self.clip_value = config.ppo_clip_ratio * left, config.ppo_clip_value * left

    def _adapt(self, divergence: float) -> None:
        if divergence > 2 * self.config.kl_threshold:
            self.lr = max(self.lr / 1.5, self.config.lr_adaptive_min)
        elif divergence < self.config.kl_threshold / 2:
            self.lr = min(self.lr * 1.5, self.config.largest_rate)

    # ------------------------------------------------------------------------------------------------ optimizer steps

    def _minibatches(
        self, columns: list[list[Transition]], own: list[Transition], draw: Draw
    ) -> list[list[Transition]]:
        """Nearly equal parts of the transitions, or of whole trajectories if the policy has a memory."""
        num_parts, shuffled = self.config.num_minibatches, self.config.shuffle_minibatches
        if self.network.config.use_rnn:
            parts = _parts(draw(len(columns)) if shuffled else range(len(columns)), num_parts)
            return [[s for i in part for s in columns[i] if s in own] for part in parts]
        parts = _parts(draw(len(own)) if shuffled and num_parts > 1 else range(len(own)), num_parts)
        return [[own[i] for i in part] for part in parts]

    def _say(self, minibatch: list[Transition]) -> Said:
        said = {id(s.trajectory): s.trajectory for s in minibatch}
        by_trajectory = {key: self.network.evaluate(trajectory) for key, trajectory in said.items()}
        each = [(by_trajectory[id(s.trajectory)], s.t) for s in minibatch]
        log_probs = torch.stack([one.log_probs[t] for one, t in each])
        entropies = torch.stack([one.entropies[t] for one, t in each])
        values = torch.stack([one.values[t] for one, t in each])
        return Said(log_probs, entropies, values, torch.exp(log_probs - _numbers(minibatch, "behavior_log_prob")))

    def _step(self, said: Said, minibatch: list[Transition], share: float) -> bool:
        """One step of Adam; False if the gradient is no number, and then nothing has changed."""
        config, parameters = self.config, self.network.parameters
        losses = self._losses(said, minibatch)
        gradients = torch.autograd.grad(losses["loss"], list(parameters.values()))
        norm = math.sqrt(sum((g**2).sum().item() for g in gradients))
        if not math.isfinite(norm):
            self.num_skipped += 1
            return False
        scale = min(1.0, config.max_grad_norm / (norm + 1e-6)) if config.max_grad_norm > 0 else 1.0
        self.version += 1
        self._adam(self.lr * share, {name: scale * g for name, g in zip(parameters, gradients, strict=True)})
        self._note(losses | {"grad_norm": norm, "lr": self.lr, "actual_lr": self.lr * share})
        self._note_change(said, minibatch)
        return True

    def _losses(self, said: Said, minibatch: list[Transition]) -> dict[str, Tensor]:
        config, mean_and_std = self.config, self.network.statistics_of_returns
        advantages = _numbers(minibatch, "advantage")
        if config.normalize_advantages:
            ddof = config.advantage_ddof if len(minibatch) > 1 else 0
            deviations = advantages - advantages.mean()
            advantages = deviations / (torch.sqrt((deviations**2).sum() / (len(minibatch) - ddof)) + 1e-8)
        ratios, low = said.ratios, 1 - self.clip_ratio
        if config.ppo_clip_form == "reciprocal":
            ratios, low = ratios.clamp(0.05, 20.0), 1 / (1 + self.clip_ratio)
        policy = torch.max(-advantages * ratios, -advantages * ratios.clamp(low, 1 + self.clip_ratio)).mean()
        targets = _scaled(_numbers(minibatch, "value_target"), *mean_and_std)
        errors = (said.values - targets) ** 2
        if config.ppo_clip_value > 0:
            old = _scaled(_numbers(minibatch, "old_value"), *mean_and_std)
            kept = old + (said.values - old).clamp(-self.clip_value, self.clip_value)
            errors = torch.max(errors, (kept - targets) ** 2)
        value, entropy = 0.5 * errors.mean(), said.entropies.mean()
        exploration = -config.entropy_coeff * entropy
        kl = config.kl_loss_coeff * (said.ratios - 1 - said.ratios.log()).mean()
        return {
            "loss": policy + config.value_loss_coeff * value + exploration + kl,
            "policy_loss": policy,
            "value_loss": value,
            "exploration_loss": exploration,
            "kl_loss": kl,
            "entropy": entropy,
        }

    def _adam(self, lr: float, gradients: dict[str, Tensor]) -> None:
        """Kingma and Ba 2015, algorithm 1; the version counts its steps."""
        beta1, beta2, eps = self.config.adam_beta1, self.config.adam_beta2, self.config.adam_eps
        for name, g in gradients.items():
            m = self.first[name] = beta1 * self.first[name] + (1 - beta1) * g
            v = self.second[name] = beta2 * self.second[name] + (1 - beta2) * g**2
            m_hat, v_hat = m / (1 - beta1**self.version), v / (1 - beta2**self.version)
            self.network.parameters[name].data -= lr * m_hat / (v_hat.sqrt() + eps)

    def _fold_in(self, trained: list[Transition]) -> None:
        """The statistics take in a dataset, and change what is published."""
        self.statistics.seen["obs"] += [s.trajectory.observations["obs"][s.t].astype(float) for s in trained]
        self.statistics.seen["returns"] += [s.value_target for s in trained]
        for name, place in self.network.normalizers.items():
            mean, variance = self.statistics.moments(name)
            if name == "returns":
                self._keep_values(mean, np.sqrt(variance + 1e-8))
            self.network.variables[f"{place}.mean"].copy_(torch.as_tensor(mean))
            self.network.variables[f"{place}.std"].copy_(torch.as_tensor(np.sqrt(variance + 1e-8)))

    def _keep_values(self, mean: Any, std: Any) -> None:
        """PopArt, van Hasselt et al. 2016, equation 9: std W + mean stays as it was before the statistics change."""
        old_mean, old_std = self.network.statistics_of_returns
        weight, bias = (self.network.parameters[f"value_head.{name}"].data for name in ("weight", "bias"))
        weight.copy_(weight * old_std / float(std))
        bias.copy_((old_std * bias + old_mean - float(mean)) / float(std))

    # -------------------------------------------------------------------------------------------------------- metrics

    def _note(self, metrics: dict[str, Any]) -> None:
        for name, value in metrics.items():
            self.metrics[name] = float(value.detach() if isinstance(value, Tensor) else value)

    def _is_clipped(self, ratios: Tensor) -> Tensor:
        width = self.clip_ratio
        low = 1 / (1 + width) if self.config.ppo_clip_form == "reciprocal" else 1 - width
        return (ratios < low) | (ratios > 1 + width)

    def _note_change(self, said: Said, minibatch: list[Transition]) -> None:
        """How far the policy and its values are from those that acted."""
        log_probs, _, values, ratios = (tensor.detach() for tensor in said)
        mean, std = self.network.statistics_of_returns
        old, targets, advantages = (_numbers(minibatch, name) for name in ("old_value", "value_target", "advantage"))
        values, k3 = mean + std * values, ratios - 1 - ratios.log()
        self._note(
            {
                "fraction_clipped": self._is_clipped(ratios).double().mean(),
                "kl_divergence": k3.mean(),
                "kl_divergence_max": k3.max(),
                "old_approx_kl": -ratios.log().mean(),
                "half_mean_squared_log_ratio": (ratios.log() ** 2).mean() / 2,
                "approx_kl": k3.mean(),
                "ratio_min": ratios.min(),
                "ratio_mean": (1 - ratios).abs().mean(),
                "ratio_max": ratios.max(),
                "max_abs_logprob": log_probs.abs().max(),
                "adv_min": advantages.min(),
                "adv_max": advantages.max(),
                "adv_std": np.std(advantages.numpy()),
                "value": values.mean(),
                "value_delta": (values - old).abs().mean(),
                "value_delta_max": (values - old).abs().max(),
                "explained_variance": _explained_variance(old, targets),
            }
        )

    def _note_state(self, published: Published, clipped: list[tuple[float, int]]) -> None:
        """After a step."""
        names = "version_diff_min", "version_diff_avg", "version_diff_max"
        self._note(dict(zip(names, published.lags, strict=True)))
        self._note({"skipped_steps": self.num_skipped})
        fractions, sizes = zip(*clipped, strict=True)
        self._note({"clipfrac": np.average(fractions, weights=sizes)})
        self._note({"adam_max_second_moment": max(v.max() for v in self.second.values())})
        if (log_std := self.network.variables.get("distribution.log_std")) is not None:
            self._note({"stddev": log_std.exp().mean()})
        for name, place in self.network.normalizers.items():
            for part in ("mean", "std"):
                self._note({f"{name}_running_{part}": self.network.variables[f"{place}.{part}"].mean()})


def by_lag(trained_on: list[tuple[int, float, bool]]) -> dict[str, float]:
    """What is shown of (lag, ratio, whether it is clipped) of each transition in each step on a dataset."""
    names = {0: "0", 1: "1"} | {n: "2-3" for n in range(2, 4)} | {n: "4-7" for n in range(4, 8)}
    names |= {n: "8-15" for n in range(8, 16)} | {n: "16-31" for n in range(16, 32)}
    metrics: dict[str, float] = {}
    for name in {names[lag] for lag, _, _ in trained_on}:
        ratios = np.array([ratio for lag, ratio, _ in trained_on if names[lag] == name])
        metrics[f"ratio_at_lag/{name}"] = ratios.mean()
        metrics[f"ESS_at_lag/{name}"] = ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())
        metrics[f"clipped_at_lag/{name}"] = float(
            np.mean([is_clipped for lag, _, is_clipped in trained_on if names[lag] == name])
        )
    return metrics


def _parts(order: Any, num_parts: int) -> list[list[int]]:
    """Nearly equal ones, the larger ones first."""
    return [part.tolist() for part in np.array_split(np.array(order), num_parts)]


def _min_avg_max(numbers: list[int]) -> tuple[float, float, float]:
    return float(min(numbers)), sum(numbers) / len(numbers), float(max(numbers))


def _numbers(minibatch: list[Transition], name: str) -> Tensor:
    return torch.tensor([getattr(s, name) for s in minibatch], dtype=torch.float64)


def _explained_variance(values: Tensor, returns: Tensor) -> float:
    """By row C12."""
    of_returns, unexplained = (float(np.var(numbers.numpy())) for numbers in (returns, returns - values))
    return math.nan if of_returns == 0 else 1 - unexplained / of_returns


def _scaled(values: Tensor, mean: float, std: float) -> Tensor:
    """In the units of the value head."""
    return (values - mean) / std
