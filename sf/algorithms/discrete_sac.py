"""Soft actor-critic for choices (Christodoulou 2019, arXiv:1910.07207).

Expectations over the actions are sums over the choices here, so nothing is drawn for an update. The policy is the
categorical one of PPO.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from sf.algorithms.critics import Critics, policy_step
from sf.algorithms.sac import Scalar
from sf.algorithms.settings import expect_in_range
from sf.config import LearnerConfig
from sf.config.ranges import ABOVE_0, UNIT
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.learner.experience import Experience
from sf.learner.off_policy import OffPolicy
from sf.learner.trained_network import TrainedNetwork
from sf.nets.categorical import Categorical, EpsilonGreedy


class DiscreteSAC(OffPolicy):
    """For one choice among several actions."""

    def __init__(
        self,
        config: LearnerConfig,
        tau: float = 0.05,
        entropy_share: float = 0.1,
        initial_temperature: float = 0.2,
    ) -> None:
        """See `Algorithm`.

        Args:
            config: of the learner; its learning rate is that of all networks.
            tau: share of the way that the target critics go towards the critics with each update.
            entropy_share: of the largest entropy, which the temperature aims at.
            initial_temperature: weight of the entropy at the start.
        """
        super().__init__(config)
        expect_in_range(
            "discrete_sac", tau=(tau, UNIT), entropy_share=(entropy_share, UNIT),
            initial_temperature=(initial_temperature, ABOVE_0),
        )  # fmt: skip
        self._tau, self._share, self._initial_temperature = tau, entropy_share, initial_temperature

    def begin(self, acting: ActingNetwork) -> None:
        """See `OffPolicy`."""
        policy, distribution = acting.policy, acting.policy.distribution
        is_one_choice = isinstance(distribution, Categorical) and policy.info.action.is_scalar
        if not is_one_choice or isinstance(distribution, EpsilonGreedy):
            raise ConfigError(
                [
                    "algorithm=discrete_sac needs one choice among several actions, a Discrete space that is sampled; "
                    f"found {policy.info.action}. Use --algorithm=sac for numbers."
                ]
            )
        self._acting, device, rate = acting, policy.flat.device, acting.learning_rate
        num_choices = distribution.num_params
        self.critics = TrainedNetwork(Critics(acting, num_choices, takes_action=False), rate, device)
        self.targets = self.critics.target()
        self.temperature = TrainedNetwork(Scalar(math.log(self._initial_temperature)), rate, device)
        self._entropy = self._share * math.log(num_choices)

    def update(self, minibatch: Experience) -> Mapping[str, Tensor]:
        """See `OffPolicy`: critics, then policy, then temperature, then target critics."""
        acting, size = self._acting, len(minibatch)
        self.critics.learning_rate = self.temperature.learning_rate = acting.learning_rate
        temperature = self.temperature().detach().exp()
        targets = self._value_targets(minibatch, temperature)
        values = self.critics(acting.inputs(minibatch.observations))
        chosen = values.gather(-1, minibatch.actions.expand(len(values), -1).unsqueeze(-1)).squeeze(-1)
        critic_loss = 0.5 * (chosen - targets).square().mean(1).sum()
        critic_loss.backward()
        self.critics.step(size, acting.peers)

        params, state_values = acting.outputs_apart(minibatch.observations)
        probs, log_probs = params.softmax(-1), params.log_softmax(-1)
        gains = (probs * (values.detach().amin(0) - temperature * log_probs)).sum(-1)
        scalars = policy_step(acting, gains, state_values)

        entropy = -(probs * log_probs).sum(-1).detach().mean()
        (self.temperature() * (entropy - self._entropy)).backward()
        self.temperature.step(size, acting.peers)
        self.targets.follow(self.critics.flat, self._tau)
        return scalars | {
            "critic_loss": critic_loss, "entropy": entropy, "temperature": temperature, "value": chosen.mean(),
            "value_target": targets.mean(),
        }  # fmt: skip

    @torch.no_grad()
    def _value_targets(self, minibatch: Experience, temperature: Tensor) -> Tensor:
        """[N] rewards and the soft value of the next observation (equation 10)."""
        params, _ = self._acting.outputs_apart(minibatch.next_observations)
        probs, log_probs = params.softmax(-1), params.log_softmax(-1)
        values = self.targets(self._acting.inputs(minibatch.next_observations)).amin(0)
        following = (probs * (values - temperature * log_probs)).sum(-1)
        return torch.addcmul(minibatch.rewards, minibatch.discounts, following)
