"""Distributions of actions over the outputs of a network."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from sf.errors import UsageError


class ActionDistribution:
    """Over the actions of n rows; built as ``dist_class(inputs, model)``."""

    inner: Any
    """The distribution of torch."""

    def __init__(self, inputs: Tensor, model: Any = None) -> None:
        """Keeps the inputs [n, size]."""
        self.inputs, self.model = inputs, model

    def sample(self) -> Tensor:
        """[n, ...] one action for each row."""
        actions: Tensor = self.inner.sample()
        return actions

    def deterministic_sample(self) -> Tensor:
        """[n, ...] the most likely actions."""
        raise NotImplementedError

    def logp(self, actions: Tensor) -> Tensor:
        """[n] logarithms of the probabilities, or densities."""
        log_probs: Tensor = self.inner.log_prob(actions)
        return log_probs

    def entropy(self) -> Tensor:
        """[n] nats."""
        entropy: Tensor = self.inner.entropy()
        return entropy

    def kl(self, other: ActionDistribution) -> Tensor:
        """[n] divergence of the other one from this one."""
        return kl_divergence(self.inner, other.inner)

    @staticmethod
    def required_model_output_shape(action_space: Any, config: Any = None) -> int:
        """Numbers that a network gives for each row."""
        raise NotImplementedError


class TorchCategorical(ActionDistribution):
    """Over the choices of a Discrete space, from logits [n, choices]."""

    def __init__(self, inputs: Tensor, model: Any = None) -> None:
        """See `ActionDistribution`."""
        super().__init__(inputs, model)
        self.inner = Categorical(logits=inputs, validate_args=False)

    def deterministic_sample(self) -> Tensor:
        """See `ActionDistribution`."""
        return self.inputs.argmax(-1)

    @staticmethod
    def required_model_output_shape(action_space: Any, config: Any = None) -> int:
        """See `ActionDistribution`."""
        return int(action_space.n)


class TorchDiagGaussian(ActionDistribution):
    """Over the numbers of a Box, from means and logarithms of deviations [n, 2 numbers]."""

    def __init__(self, inputs: Tensor, model: Any = None) -> None:
        """See `ActionDistribution`."""
        super().__init__(inputs, model)
        self._mean, log_std = inputs.chunk(2, -1)
        self.inner = Independent(Normal(self._mean, log_std.exp(), validate_args=False), 1, validate_args=False)

    def deterministic_sample(self) -> Tensor:
        """See `ActionDistribution`."""
        return self._mean

    @staticmethod
    def required_model_output_shape(action_space: Any, config: Any = None) -> int:
        """See `ActionDistribution`."""
        return 2 * int(np.prod(action_space.shape))


def distribution_for(action_space: Any) -> type[ActionDistribution]:
    """The class for a space.

    Raises:
        UsageError: there is none.
    """
    if isinstance(action_space, gym.spaces.Discrete):
        return TorchCategorical
    if isinstance(action_space, gym.spaces.Box) and len(action_space.shape) == 1:
        return TorchDiagGaussian
    raise UsageError(
        f"Policies of plans act in Discrete spaces and in Boxes of one axis, not in {action_space}. Give the policy "
        "an action_distribution_fn or an action_sampler_fn of its own."
    )


def as_actions(sampled: Tensor) -> np.ndarray[Any, Any]:
    """For an environment."""
    array: np.ndarray[Any, Any] = sampled.detach().cpu().numpy()
    return array
