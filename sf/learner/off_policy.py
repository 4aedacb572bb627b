"""The seam for algorithms that learn from transitions of earlier policies.

    batch [T, B] -> ring of transitions -> minibatches [N] -> OffPolicy.update -> published policy

An `OffPolicy` owns its networks beside the acting one and takes the optimizer steps of all of them. The loop around it
is `sf.learner.off_policy_update.OffPolicyUpdate`. What else a run has is the same as for PPO: sampling, versions, lag,
supervision, checkpoints, evaluation and curves.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.algorithm import Algorithm, Losses
from sf.learner.dataset import Transitions
from sf.learner.experience import Experience
from sf.learner.optimizer import FlatAdam
from sf.learner.peers import ALONE, Peers
from sf.learner.trained_network import averaged_and_clipped
from sf.nets.actor_critic import Observations
from sf.policy import ActorCritic, Evaluation


class ActingNetwork:
    """The network that acts, as an algorithm trains it. It is published after each `OffPolicy.update`."""

    def __init__(self, policy: ActorCritic, optimizer: FlatAdam, config: LearnerConfig, peers: Peers = ALONE) -> None:
        """Trains a policy with this optimizer."""
        self.policy, self.peers = policy, peers
        self.learning_rate = config.initial_rate
        """Of the next step; follows the schedule."""
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


class OffPolicy(Algorithm):
    """How a policy learns from transitions that any policy has collected; a subclass says what an update is."""

    num_steps: int = 1
    """Rewards that are summed before the value of an observation follows."""

    def __init__(self, config: LearnerConfig) -> None:
        """See `Algorithm`."""
        super().__init__(config)
        self.progress = 0.0
        """The part of the run, from 0 to 1, that lies behind."""

    def set_progress(self, fraction: float) -> None:
        """See `Algorithm`; keeps it as `progress`."""
        self.progress = fraction

    def begin(self, acting: ActingNetwork) -> None:
        """Makes the networks beside the acting one; called once, before anything else.

        Modules in attributes are saved and resumed, see `Algorithm.state_dict`.

        Raises:
            ConfigError: the policy has other actions or parts than the algorithm is made for.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method begin(acting).")

    def update(self, minibatch: Experience) -> Mapping[str, Tensor]:
        """One step of the acting network, and those of all other networks.

        Returns:
            Scalars that TensorBoard shows below ``train/``, each under its name.

        Raises:
            NonFiniteLoss: a gradient is not finite.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method update(minibatch).")

    def explore(self) -> None:
        """Called before each batch, also before the first update: sets how the policy explores while it acts."""

    def loss(self, evaluation: Evaluation, minibatch: Transitions) -> Losses:
        """Never called: `update` takes its place."""
        raise NotImplementedError(f"{type(self).__name__} learns by update(minibatch).")
