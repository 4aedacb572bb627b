"""Deep Q-learning (Mnih et al. 2015, doi:10.1038/nature14236) with double targets and a duelling network.

The heads of the policy are the two streams of the duelling network (Wang et al. 2016, arXiv:1511.06581). The value
head gives V(s), and the policy head the advantages A(s, a). Q(s, a) = V(s) + A(s, a) - mean A is best where A is.
So the acting network, its films and its curves of values are the ones of any policy.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from sf.algorithms.epsilon import EpsilonSchedule, epsilon_of
from sf.algorithms.settings import expect_in_range
from sf.config import LearnerConfig
from sf.config.ranges import AT_LEAST_0, AT_LEAST_1, UNIT
from sf.learner.acting_network import ActingNetwork
from sf.learner.experience import Experience
from sf.learner.off_policy import OffPolicy
from sf.learner.priorities import Priorities
from sf.nets.categorical import MASKED_LOGIT
from sf.spaces import ACTION_MASK


class DQN(OffPolicy):
    """For one choice among several actions."""

    def __init__(
        self,
        config: LearnerConfig,
        num_steps: int = 5,
        double: bool = True,
        tau: float = 1.0,
        target_every: int = 500,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_fraction: float = 0.2,
        priority_alpha: float = 0.0,
        priority_beta: float = 0.4,
    ) -> None:
        """See `Algorithm`.

        Args:
            config: of the learner.
            num_steps: n, rewards that are summed before the value of an observation follows.
            double: let the present network choose the action that the target network values (van Hasselt et al. 2016,
                arXiv:1509.06461).
            tau: share of the way that the target network goes towards the present one.
            target_every: updates between two of these.
            epsilon_start: share of random actions at the start of the run.
            epsilon_end: the same at its end.
            epsilon_fraction: part of the run in which it falls from one to the other.
            priority_alpha: how much likelier transitions with large errors are drawn, see `Priorities`; 0.6 is usual.
            priority_beta: how much of that is taken back at the start of the run; all of it at the end.
        """
        super().__init__(config)
        expect_in_range(
            "dqn", num_steps=(num_steps, AT_LEAST_1), tau=(tau, UNIT), target_every=(target_every, AT_LEAST_1),
            priority_alpha=(priority_alpha, AT_LEAST_0), priority_beta=(priority_beta, UNIT),
        )  # fmt: skip
        self.num_steps, self._double, self._tau, self._target_every = num_steps, double, tau, target_every
        self._beta = priority_beta
        if priority_alpha > 0:
            self.priorities = Priorities(priority_alpha, priority_beta)
        self._schedule = EpsilonSchedule.checked("dqn", epsilon_start, epsilon_end, epsilon_fraction)

    def begin(self, acting: ActingNetwork) -> None:
        """See `OffPolicy`."""
        self._acting, self._epsilon = acting, epsilon_of(acting, "dqn")
        self._epsilon.fill_(self._schedule.start)
        self._masked = ACTION_MASK in acting.policy.info.observations
        self.target = copy.deepcopy(acting.policy)
        self._target_outputs = acting.outputs_of(self.target)

    def explore(self) -> None:
        """See `OffPolicy`."""
        self._epsilon.fill_(self._schedule.at(self.progress))
        if self.priorities is not None:
            self.priorities.beta = self._beta + self.progress * (1.0 - self._beta)

    def update(self, minibatch: Experience) -> Mapping[str, Tensor]:
        """See `OffPolicy`."""
        acting, actions = self._acting, minibatch.actions
        targets = self._value_targets(minibatch)
        params, state_values, back = acting.outputs_and_way_back(minibatch.observations)
        with torch.no_grad():
            chosen = action_values(params, state_values, self._masked).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
            errors = chosen - targets
            # The derivatives of the Huber loss, in which large errors count linearly.
            slopes = (minibatch.weights / len(minibatch)) * errors.clamp(-1.0, 1.0)
            d_params = through_advantages(params, actions, slopes, self._masked)
        acting.zero_grad()
        back(d_params, slopes)
        grad_norm = acting.step(len(minibatch))
        if self.priorities is not None:
            self.priorities.update(minibatch.places, errors)
        if (self.version + 1) % self._target_every == 0:
            acting.lead(self.target, self._tau)
        if not self.is_shown:
            return {}
        losses = minibatch.weights * functional.smooth_l1_loss(chosen, targets, reduction="none")
        return {
            "loss": losses.mean(), "grad_norm": grad_norm, "value": chosen.mean(), "value_target": targets.mean(),
            "epsilon": self._epsilon.clone(),
        }  # fmt: skip

    @torch.no_grad()
    def _value_targets(self, minibatch: Experience) -> Tensor:
        """[N] rewards and the value of the best action that follows."""
        observations = minibatch.next_observations
        params, state_values = self._target_outputs(observations)
        choices = self._acting.outputs(observations)[0] if self._double else params
        best = choices.argmax(-1, keepdim=True)
        following = action_values(params, state_values, self._masked).gather(-1, best).squeeze(-1)
        return torch.addcmul(minibatch.rewards, minibatch.discounts, following)


def action_values(advantages: Tensor, state_values: Tensor, masked: bool = True) -> Tensor:
    """[N, n] values of the actions, from advantages [N, n] and values of the observations [N].

    Actions that are not legal keep their mask, and the mean is over the others; all are where nothing is `masked`.
    """
    if not masked:
        return advantages + (state_values - advantages.mean(-1)).unsqueeze(-1)
    legal = advantages > MASKED_LOGIT / 2
    mean = torch.where(legal, advantages, 0.0).sum(-1) / legal.sum(-1).clamp_(min=1)
    return advantages + (state_values - mean).unsqueeze(-1)


def through_advantages(advantages: Tensor, actions: Tensor, slopes: Tensor, masked: bool = True) -> Tensor:
    """[N, n] derivatives with respect to the advantages, from those [N] of the `action_values` of actions [N]."""
    if not masked:
        of_mean = (slopes / -advantages.shape[-1]).unsqueeze(-1).repeat(1, advantages.shape[-1])
        return of_mean.scatter_add_(-1, actions.unsqueeze(-1), slopes.unsqueeze(-1))
    legal = advantages > MASKED_LOGIT / 2
    of_mean = -(slopes / legal.sum(-1).clamp_(min=1)).unsqueeze(-1) * legal
    return of_mean.scatter_add_(-1, actions.unsqueeze(-1), slopes.unsqueeze(-1))
