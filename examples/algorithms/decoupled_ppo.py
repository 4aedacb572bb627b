"""PPO with the decoupled objective, for stale data (Hilton et al. 2021, arXiv:2110.00641, section 2).

    sf-train --env=CartPole-v1 --num_batches_to_accumulate=8 --algorithm=examples.algorithms.decoupled_ppo:DecoupledPPO

Two policies play two parts. The behavior policy has acted; its ratio only corrects for where the data comes from. The
proximal policy limits the step; here it is the one that the batch was prepared with. PPO uses the first for both, so
that data which is old uses up the clip range before the policy has moved at all.
"""

from __future__ import annotations

import torch

import sf
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions, evaluate_batch
from sf.learner.losses import bounded, value_loss
from sf.policy import ActorCritic, Evaluation

MOST_CORRECTION = 10.0
"""Limit of the ratio between the proximal policy and the one that acted; larger ones are the work of chance."""


class DecoupledPPO(sf.Algorithm):
    """Clips around the proximal policy, and weighs transitions by how likely it finds their actions."""

    def prepare(self, batch: Batch, policy: ActorCritic) -> Transitions:
        """See `sf.Algorithm.prepare`; the proximal policy stays the same for all epochs."""
        log_probs, _ = evaluate_batch(batch, policy, self.config.num_minibatches)
        return super().prepare(batch, policy).with_columns(proximal_log_probs=log_probs.flatten())

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> sf.Losses:
        """See `sf.Algorithm.loss`."""
        config, advantages = self.config, minibatch.advantages
        corrections = (minibatch["proximal_log_probs"] - minibatch.behavior_log_probs).exp().clamp(max=MOST_CORRECTION)
        ratios = bounded(evaluation.log_probs - minibatch["proximal_log_probs"]).exp()  # 0 times infinity is no number
        clipped = ratios.clamp(1.0 - config.ppo_clip_ratio, 1.0 + config.ppo_clip_ratio)
        policy = -(corrections * torch.minimum(advantages * ratios, advantages * clipped)).mean()
        values, old_values = evaluation.normalized_values, minibatch.old_values
        value = value_loss(values, old_values, minibatch.value_targets, config.ppo_clip_value)
        return sf.Losses(policy, {"policy_loss": policy}).plus(
            value_loss=config.value_loss_coeff * value,
            exploration_loss=-config.entropy_coeff * evaluation.entropy.mean(),
        )
