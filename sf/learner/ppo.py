"""Proximal policy optimization, the default algorithm (Schulman et al. 2017, arXiv:1707.06347).

With one epoch of one minibatch and no clipping of values it is the advantage actor-critic A2C. `with_vtrace` takes the
advantages of V-trace (Espeholt et al. 2018, arXiv:1802.01561) instead of generalized advantage estimation.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from sf.config import LearnerConfig
from sf.learner.algorithm import Algorithm, Losses, LossGradients
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions, with_vtrace
from sf.learner.losses import clip_range, clipped_policy_loss, divergences, limited, value_loss
from sf.policy import ActorCritic, Evaluation


class PPO(Algorithm):
    """Clipped ratios, a clipped value loss, an entropy bonus, and an optional penalty on the KL divergence."""

    def __init__(self, config: LearnerConfig) -> None:
        """See `Algorithm`; the clip ranges of `config` are those of the beginning of the run."""
        super().__init__(config)
        self._flags = config
        self.prepares_each_epoch = config.with_vtrace

    def set_progress(self, fraction: float) -> None:
        """Lets both clip ranges shrink with the run if `ppo_clip_anneal` says so."""
        if self._flags.ppo_clip_anneal:
            left, ratio, value = 1.0 - fraction, self._flags.ppo_clip_ratio, self._flags.ppo_clip_value
            self.config = replace(self._flags, ppo_clip_ratio=ratio * left, ppo_clip_value=value * left)

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """See `Algorithm.prepare`; with V-trace under the present weights if `with_vtrace` says so."""
        return with_vtrace(batch, policy, self.config) if self.config.with_vtrace else super().prepare(batch, policy)

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        """Policy loss + value_loss_coeff · value loss - exploration_loss_coeff · entropy + kl_loss_coeff · KL."""
        config = self.config
        log_ratios = evaluation.log_probs - minibatch.behavior_log_probs
        policy = clipped_policy_loss(minibatch.advantages, limited(log_ratios.exp(), config), *clip_range(config))
        value = value_loss(
            evaluation.normalized_values, minibatch.old_values, minibatch.value_targets, config.ppo_clip_value
        )
        exploration = -config.exploration_loss_coeff * evaluation.entropy.mean()
        kl = config.kl_loss_coeff * divergences(log_ratios)[2].mean()
        return Losses(
            policy + config.value_loss_coeff * value + exploration + kl,
            {"policy_loss": policy, "value_loss": value, "exploration_loss": exploration, "kl_loss": kl},
        )

    @torch.no_grad()
    def gradients(self, evaluation: Evaluation, minibatch: Transitions) -> LossGradients:
        """See `Algorithm.gradients`.

        Recording these few formulas and running them backwards takes a fifth of an optimizer step of 512 transitions.
        A clipped term does not depend on the network, so where it is the larger one the derivative is 0.
        """
        config, weight = self.config, 1.0 / len(minibatch)
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
