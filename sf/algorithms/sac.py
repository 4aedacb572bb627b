"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) with twin critics and a temperature that adapts.

The network of the policy draws numbers u of a normal distribution whose deviation depends on the observation, and the
environment gets a = tanh(u), scaled to its bounds. So a replayed action is u, and critics see a. The value head learns
the value of the policy beside it, for the curves and films that show one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from sf.algorithms.critics import Critics, policy_step
from sf.algorithms.settings import expect_in_range
from sf.config import LearnerConfig
from sf.config.ranges import ABOVE_0, UNIT
from sf.errors import ConfigError
from sf.learner.acting_network import ActingNetwork
from sf.learner.experience import Experience
from sf.learner.off_policy import OffPolicy
from sf.learner.trained_network import TrainedNetwork
from sf.nets.gaussian import DiagonalGaussian


class SAC(OffPolicy):
    """For actions that are numbers within bounds."""

    def __init__(
        self,
        config: LearnerConfig,
        tau: float = 0.005,
        target_entropy: float | None = None,
        initial_temperature: float = 1.0,
    ) -> None:
        """See `Algorithm`.

        Args:
            config: of the learner; its learning rate is that of all networks.
            tau: share of the way that the target critics go towards the critics with each update.
            target_entropy: of the squashed actions in [-1, 1], which the temperature aims at; None for minus the
                number of dimensions.
            initial_temperature: weight of the entropy at the start.
        """
        super().__init__(config)
        expect_in_range("sac", tau=(tau, UNIT), initial_temperature=(initial_temperature, ABOVE_0))
        self._tau, self._target_entropy = tau, target_entropy
        self._initial_temperature = initial_temperature

    def begin(self, acting: ActingNetwork) -> None:
        """See `OffPolicy`."""
        policy, distribution = acting.policy, acting.policy.distribution
        if type(distribution) is not DiagonalGaussian or distribution.log_std is not None:
            raise ConfigError(
                [
                    "algorithm=sac needs actions that are numbers, a Box, whose deviation the network chooses "
                    f"(adaptive_stddev=True); found {policy.info.action}. Use --algorithm=dqn for choices."
                ]
            )
        self._acting, self._distribution = acting, distribution
        device, rate = policy.flat.device, acting.learning_rate
        self.critics = TrainedNetwork(Critics(acting, 1, takes_action=True), rate, device)
        self.targets = self.critics.target()
        self.temperature = TrainedNetwork(Scalar(math.log(self._initial_temperature)), rate, device)
        self._entropy = -float(distribution.size) if self._target_entropy is None else self._target_entropy

    def update(self, minibatch: Experience) -> Mapping[str, Tensor]:
        """See `OffPolicy`: critics, then policy, then temperature, then target critics."""
        acting, size = self._acting, len(minibatch)
        self.critics.learning_rate = self.temperature.learning_rate = acting.learning_rate
        temperature = self.temperature().detach().exp()
        inputs = acting.inputs(minibatch.observations)

        targets = self._value_targets(minibatch, temperature)
        values = self.critics(inputs, minibatch.actions.tanh())
        critic_loss = 0.5 * (values - targets).square().mean(1).sum()
        critic_loss.backward()
        self.critics.step(size, acting.peers)

        actions, log_probs, state_values = self._drawn(minibatch.observations)
        with self.critics.frozen():
            gains = self.critics(inputs, actions).amin(0) - temperature * log_probs
        scalars = policy_step(acting, gains, state_values)

        entropy = -log_probs.detach().mean()
        (self.temperature() * (entropy - self._entropy)).backward()
        self.temperature.step(size, acting.peers)
        self.targets.follow(self.critics.flat, self._tau)
        return scalars | {
            "critic_loss": critic_loss, "entropy": entropy, "temperature": temperature, "value": values.mean(),
            "value_target": targets.mean(),
        }  # fmt: skip

    @torch.no_grad()
    def _value_targets(self, minibatch: Experience, temperature: Tensor) -> Tensor:
        """[N] rewards and the soft value of the next observation (equation 3)."""
        actions, log_probs, _ = self._drawn(minibatch.next_observations)
        values = self.targets(self._acting.inputs(minibatch.next_observations), actions).amin(0)
        return torch.addcmul(minibatch.rewards, minibatch.discounts, values - temperature * log_probs)

    def _drawn(self, observations: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Squashed actions [N, d] with gradient, their log-probabilities [N], and values of the observations [N].

        The values move the value head alone: its gradient ends at the features.
        """
        params, values = self._acting.outputs_apart(observations)
        mean, log_std = self._distribution.moments(params)
        noise = torch.randn_like(mean)
        numbers = torch.addcmul(mean, noise, log_std.exp())
        densities = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh²(u)) in a form that stays finite (appendix C).
        squashing = 2.0 * (math.log(2.0) - numbers - functional.softplus(-2.0 * numbers))
        return numbers.tanh(), (densities - squashing).sum(-1), values


class Scalar(nn.Module):
    """One number that is trained."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value, dtype=torch.float32))

    def forward(self) -> Tensor:
        return self.value
