r"""A policy gradient with a learned baseline (Sutton et al. 1999; Williams 1992), the shortest algorithm of all.

    sf-train --env=CartPole-v1 --async_rl=False --num_epochs=1 \
        --algorithm=examples.algorithms.policy_gradient:PolicyGradient

Data is used once, because nothing here corrects for the change of the policy.
"""

from __future__ import annotations

import sf
from sf.learner.dataset import Transitions
from sf.policy import Evaluation


class PolicyGradient(sf.Algorithm):
    """Actions become more likely by how much better they were than the baseline, which is the value."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> sf.Losses:
        """See `sf.Algorithm.loss`."""
        policy = -(minibatch.advantages * evaluation.log_probs).mean()
        errors = evaluation.normalized_values - minibatch.value_targets
        return sf.Losses(policy, {"policy_loss": policy}).plus(
            value_loss=0.5 * errors.square().mean(),
            exploration_loss=-self.config.entropy_coeff * evaluation.entropy.mean(),
        )
