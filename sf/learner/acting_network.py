"""The network that acts, as an algorithm sees it that takes steps of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.optimizer import FlatAdam
from sf.learner.peers import ALONE, Peers
from sf.learner.trained_network import averaged_and_clipped
from sf.nets.actor_critic import Observations
from sf.policy import ActorCritic


class ActingNetwork:
    """The network that acts, with its optimizer and the other learners that train it."""

    def __init__(self, policy: ActorCritic, optimizer: FlatAdam, config: LearnerConfig, peers: Peers = ALONE) -> None:
        """Trains a policy with this optimizer."""
        self.policy, self.peers = policy, peers
        self.learning_rate = config.initial_rate
        """For the next step; follows the schedule."""
        self.num_steps = 0
        """Steps taken through this object since it was made."""
        self._optimizer, self._max_grad_norm = optimizer, config.max_grad_norm

    def zero_grad(self) -> None:
        """Forgets the gradient."""
        self.policy.flat_gradient.zero_()

    def step(self, size: int) -> Tensor:
        """An optimizer step along the gradient that is there; returns its norm.

        Args:
            size: transitions behind the gradient.

        Raises:
            NonFiniteLoss: the gradient is not finite.
        """
        norm = averaged_and_clipped(self.policy.flat_gradient, size, self.peers, self._max_grad_norm)
        self._optimizer.step(self.learning_rate)
        self.num_steps += 1
        return norm

    def outputs(self, observations: Observations) -> tuple[Tensor, Tensor]:
        """Parameters of the action distribution [N, n] and values [N], with gradients."""
        params, values, _ = self.policy.forward(observations, None)
        return params, values

    def inputs(self, observations: Observations) -> dict[str, Tensor]:
        """Observations as the network reads them: normalized, [N, *shape] per leaf."""
        with torch.no_grad():
            prepared: dict[str, Tensor] = self.policy.inputs(observations)
        return prepared
