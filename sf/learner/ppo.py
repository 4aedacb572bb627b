"""Proximal policy optimization, the default algorithm (Schulman et al. 2017, arXiv:1707.06347).

With one epoch of one minibatch and no clipping of values it is the advantage actor-critic A2C. `with_vtrace` takes the
advantages of V-trace (Espeholt et al. 2018, arXiv:1802.01561) instead of generalized advantage estimation.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.algorithm import Algorithm, Losses, LossGradients
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions, evaluate_batch, with_gae, with_present_values, with_vtrace
from sf.learner.losses import (
    MOST_LOG_RATIO,
    RATIO_LIMITS,
    bounded,
    clip_range,
    clipped_gains,
    divergences,
    interpolated_log_probs,
    limited_ratios,
    truncated_gains,
    value_loss,
)
from sf.learner.small_steps import Coefficients, is_small, small_steps
from sf.policy import ActorCritic, Evaluation


class PPO(Algorithm):
    """Clipped ratios, a clipped value loss, an entropy bonus, and an optional penalty on the KL divergence.

    Flags choose how stale data is corrected for: the decoupled objective (Hilton et al. 2021, arXiv:2110.00641, section
    2), truncated importance weights, or V-trace. On data of the present policy all of them are the same.
    """

    def __init__(self, config: LearnerConfig) -> None:
        """See `Algorithm`; the clip ranges of `config` are those of the beginning of the run."""
        super().__init__(config)
        self._flags = config
        self.prepares_each_epoch = self.prepares_each_epoch or config.with_vtrace or config.recompute_advantages
        self.has_gradients = self.has_gradients and config.objective == "ppo" and not config.ppo_dual_clip
        self._small, self._coefficients = small_steps(config), _coefficients(config)

    def set_progress(self, fraction: float) -> None:
        """Lets the clip ranges shrink with the run if `ppo_clip_anneal` says so."""
        if self._flags.ppo_clip_anneal:
            left, flags = 1.0 - fraction, self._flags
            high = None if flags.ppo_clip_ratio_high is None else flags.ppo_clip_ratio_high * left
            ratio, value = flags.ppo_clip_ratio * left, flags.ppo_clip_value * left
            self.config = replace(flags, ppo_clip_ratio=ratio, ppo_clip_ratio_high=high, ppo_clip_value=value)
            self._coefficients = _coefficients(self.config)

    def reconfigure(self, config: LearnerConfig) -> None:
        """See `Algorithm`."""
        super().reconfigure(config)
        self._flags, self._coefficients = config, _coefficients(config)

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """See `Algorithm.prepare`; with V-trace or present values under the present weights if the flags say so."""
        config = self.config
        if config.with_vtrace:
            transitions = with_vtrace(batch, policy, config)
        else:
            transitions = with_gae(with_present_values(batch, policy, config), policy, config)
        if config.objective != "decoupled":
            return transitions
        if self.is_first_epoch:
            self._proximal_version = self.version
            self._proximal = self._proximal_column(batch, policy)
        return transitions.with_columns(**self._proximal)

    def _proximal_column(self, batch: Batch, policy: ActorCritic) -> dict[str, Tensor]:
        """The column that the loss needs of the policy before the first step on this batch."""
        if self.config.proximal_policy == "interpolated":
            return {"acted": batch.policy_version.flatten().to(policy.flat.device)}
        log_probs, _ = evaluate_batch(batch, policy, self.config.num_minibatches)
        return {"proximal_log_probs": log_probs.flatten()}

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        """Policy loss + value_loss_coeff · value loss - exploration_loss_coeff · entropy + kl_loss_coeff · KL."""
        config = self.config
        log_ratios = evaluation.log_probs - minibatch.behavior_log_probs
        policy = -self._gains(evaluation, minibatch, log_ratios).mean()
        value = value_loss(
            evaluation.normalized_values, minibatch.old_values, minibatch.value_targets, config.ppo_clip_value
        )
        exploration = -config.entropy_coeff * evaluation.entropy.mean()
        kl = torch.zeros_like(policy)
        if config.kl_loss_coeff > 0:  # else an infinite divergence times 0 would be no number
            kl = config.kl_loss_coeff * divergences(bounded(log_ratios))[2].mean()
        return Losses(
            policy + config.value_loss_coeff * value + exploration + kl,
            {"policy_loss": policy, "value_loss": value, "exploration_loss": exploration, "kl_loss": kl},
        )

    def clipped(self, evaluation: Evaluation, minibatch: Transitions) -> Tensor:
        """[N] bool, whether a ratio is outside of the clip range, or above the largest importance weight."""
        config = self.config
        if config.objective == "truncated":
            return evaluation.log_probs - minibatch.behavior_log_probs > math.log(config.importance_weight_max)
        old = minibatch.behavior_log_probs
        if config.objective == "decoupled":
            old = self._proximal_log_probs(evaluation, minibatch)
        ratios, (low, high) = (evaluation.log_probs - old).exp(), clip_range(config)
        return (ratios < low) | (ratios > high)

    def _gains(self, evaluation: Evaluation, minibatch: Transitions, log_ratios: Tensor) -> Tensor:
        """[N] what the policy gains from each transition, with gradient."""
        config, advantages = self.config, minibatch.advantages
        if config.objective == "truncated":
            return truncated_gains(advantages, log_ratios, config.importance_weight_max)
        weights: Tensor | float = 1.0
        if config.objective == "decoupled":
            proximal = self._proximal_log_probs(evaluation, minibatch)
            weights = (proximal - minibatch.behavior_log_probs).exp().clamp(max=config.importance_weight_max)
            log_ratios = evaluation.log_probs - proximal
        low, high = clip_range(config)
        return weights * clipped_gains(advantages, limited_ratios(log_ratios, config), low, high, config.ppo_dual_clip)

    def _proximal_log_probs(self, evaluation: Evaluation, minibatch: Transitions) -> Tensor:
        if self.config.proximal_policy == "evaluated":
            return minibatch["proximal_log_probs"]
        present = evaluation.log_probs.detach()
        return interpolated_log_probs(
            minibatch.behavior_log_probs, present, minibatch["acted"], self._proximal_version, self.version
        )

    @torch.no_grad()
    def gradients(self, evaluation: Evaluation, minibatch: Transitions) -> LossGradients:
        """See `Algorithm.gradients`.

        Recording these few formulas and running them backwards takes a fifth of an optimizer step of 512 transitions.
        A clipped term does not depend on the network, so where it is the larger one the derivative is 0.
        """
        if self._small is not None and is_small(evaluation.log_probs):
            return LossGradients(
                *self._small.ppo_gradients(
                    self._coefficients, evaluation.log_probs, minibatch.behavior_log_probs, minibatch.advantages,
                    evaluation.normalized_values, minibatch.old_values, minibatch.value_targets,
                )
            )  # fmt: skip
        config, weight = self.config, 1.0 / len(minibatch)
        advantages = minibatch.advantages
        log_ratios = torch.sub(evaluation.log_probs, minibatch.behavior_log_probs)
        beyond = log_ratios > MOST_LOG_RATIO
        ratios = log_ratios.clamp_(max=MOST_LOG_RATIO).exp_()
        limited = ratios.clamp(*RATIO_LIMITS) if config.ppo_clip_form == "reciprocal" else ratios
        gains = advantages * limited
        constant = (gains > advantages * ratios.clamp(*clip_range(config))).logical_or_(beyond)
        if config.ppo_clip_form == "reciprocal":
            constant.logical_or_(ratios != limited)
        d_log_probs = gains.masked_fill_(constant, 0.0).mul_(-weight)
        if config.kl_loss_coeff > 0:
            d_log_probs.add_((ratios - 1.0).masked_fill_(beyond, 0.0), alpha=weight * config.kl_loss_coeff)

        values, old_values, targets = evaluation.normalized_values, minibatch.old_values, minibatch.value_targets
        errors = values - targets
        if config.ppo_clip_value > 0:
            changes = values - old_values
            clipped_errors = changes.clamp(-config.ppo_clip_value, config.ppo_clip_value).add_(old_values).sub_(targets)
            clipped = (changes.abs_() > config.ppo_clip_value).logical_and_(clipped_errors.abs_() > errors.abs())
            errors.masked_fill_(clipped, 0.0)
        d_values = errors.mul_(weight * config.value_loss_coeff)

        d_entropy = torch.full_like(evaluation.entropy, -weight * config.entropy_coeff)
        return LossGradients(d_log_probs, d_entropy, d_values)


def _coefficients(config: LearnerConfig) -> Coefficients:
    low, high = clip_range(config)
    least, most = RATIO_LIMITS
    return Coefficients(
        low=low, high=high, least_ratio=least, most_ratio=most, most_log_ratio=MOST_LOG_RATIO,
        clip_value=config.ppo_clip_value, value=config.value_loss_coeff, entropy=config.entropy_coeff,
        kl=config.kl_loss_coeff, is_reciprocal=config.ppo_clip_form == "reciprocal",
    )  # fmt: skip
