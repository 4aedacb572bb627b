"""Twin delayed deep deterministic policy gradient, TD3 (Fujimoto et al. 2018, arXiv:1802.09477).

The network of the policy gives one action in [-1, 1] for each observation, and acting adds noise to it. Twin critics
learn from the lesser of two target values, of an action near the one that the target policy takes. The policy follows
them more slowly.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from sf.algorithms.critics import Critics, policy_step
from sf.algorithms.settings import expect_in_range
from sf.config import LearnerConfig
from sf.config.ranges import ABOVE_0, AT_LEAST_0, AT_LEAST_1, UNIT
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.learner.experience import Experience
from sf.learner.off_policy import OffPolicy
from sf.learner.trained_network import TrainedNetwork
from sf.nets.gaussian import NoisyAction


class TD3(OffPolicy):
    """For actions that are numbers within bounds."""

    def __init__(
        self,
        config: LearnerConfig,
        tau: float = 0.005,
        exploration_noise: float = 0.1,
        target_noise: float = 0.2,
        most_target_noise: float = 0.5,
        policy_every: int = 2,
    ) -> None:
        """See `Algorithm`.

        Args:
            config: of the learner; its learning rate is that of all networks.
            tau: share of the way that target networks go with each update of the policy.
            exploration_noise: deviation of the noise while acting, for actions in [-1, 1].
            target_noise: the same in the actions whose value is a target.
            most_target_noise: limit of that noise.
            policy_every: updates of the critics for each of the policy.
        """
        super().__init__(config)
        expect_in_range(
            "td3", tau=(tau, UNIT), policy_every=(policy_every, AT_LEAST_1),
            exploration_noise=(exploration_noise, ABOVE_0), target_noise=(target_noise, AT_LEAST_0),
            most_target_noise=(most_target_noise, AT_LEAST_0),
        )  # fmt: skip
        self._tau, self._exploration_noise, self._policy_every = tau, exploration_noise, policy_every
        self._target_noise, self._most_noise = target_noise, most_target_noise

    def begin(self, acting: ActingNetwork) -> None:
        """See `OffPolicy`."""
        policy, distribution = acting.policy, acting.policy.distribution
        if not isinstance(distribution, NoisyAction):
            raise ConfigError(
                [
                    "algorithm=td3 needs actions that are numbers, a Box (exploration=noise); found "
                    f"{policy.info.action}. Use --algorithm=dqn for choices."
                ]
            )
        self._acting, device = acting, policy.flat.device
        self._log_noise = distribution.log_noise
        self.explore()
        self.critics = TrainedNetwork(Critics(acting, 1, takes_action=True), acting.learning_rate, device)
        self.targets = self.critics.target()
        self.target = copy.deepcopy(policy)
        self._target_outputs = acting.outputs_of(self.target)

    def explore(self) -> None:
        """See `OffPolicy`; a run that goes on may have another deviation than the one that was saved."""
        self._log_noise.fill_(math.log(self._exploration_noise))

    def update(self, minibatch: Experience) -> Mapping[str, Tensor]:
        """See `OffPolicy`: critics, and every `policy_every` updates the policy and all targets."""
        acting, size = self._acting, len(minibatch)
        inputs, targets = acting.inputs(minibatch.observations), self._value_targets(minibatch)
        values = self.critics(inputs, minibatch.actions.clamp(-1.0, 1.0))
        critic_loss = (values - targets).square().mean(1).sum()
        critic_loss.backward()
        self.critics.learning_rate = acting.learning_rate
        self.critics.step(size, acting.peers)
        scalars = {"critic_loss": critic_loss, "value": values.mean(), "value_target": targets.mean()}
        if int(self.critics.num_steps) % self._policy_every:
            return scalars
        params, state_values = acting.outputs_apart(minibatch.observations)
        with self.critics.frozen():
            gains = self.critics(inputs, params.tanh())[0]
        scalars |= policy_step(acting, gains, state_values)
        self.targets.follow(self.critics.flat, self._tau)
        acting.lead(self.target, self._tau)
        return scalars

    @torch.no_grad()
    def _value_targets(self, minibatch: Experience) -> Tensor:
        """[N] rewards and the value of an action near that of the target policy (equations 10 and 14)."""
        params, _ = self._target_outputs(minibatch.next_observations)
        noise = (self._target_noise * torch.randn_like(params)).clamp_(-self._most_noise, self._most_noise)
        actions = (params.tanh() + noise).clamp_(-1.0, 1.0)
        values = self.targets(self._acting.inputs(minibatch.next_observations), actions).amin(0)
        return torch.addcmul(minibatch.rewards, minibatch.discounts, values)
