"""Distributions of actions over the outputs of a network: those of `sf.nets`, with the names of RLlib."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor

from sf.config import ModelConfig
from sf.errors import UsageError
from sf.nets import distributions as nets
from sf.nets.categorical import Categorical
from sf.nets.columns import kl_divergence
from sf.nets.gaussian import DiagonalGaussian

GAUSSIAN = ModelConfig(adaptive_stddev=True)
"""The network gives the deviations too."""


class ActionDistribution:
    """Over the actions of n rows; built as ``dist_class(inputs, model)``. A subclass may replace any method."""

    def __init__(self, inputs: Tensor, model: Any = None) -> None:
        """Keeps the inputs [n, size]."""
        self.inputs, self.model, self.kind = inputs, model, self.kind_for(inputs.shape[-1])
        self._entropy: Tensor | None = None

    @staticmethod
    def kind_for(size: int) -> nets.ActionDistribution:
        """The formulas for so many inputs; they have no weights, so one object serves all."""
        raise NotImplementedError

    def sample(self) -> Tensor:
        """[n, ...] one action for each row."""
        return self.kind.draw(self.inputs, self.kind.noise(len(self.inputs), None, self.inputs.device))

    def deterministic_sample(self) -> Tensor:
        """[n, ...] the most likely actions."""
        return self.kind.best(self.inputs)

    def logp(self, actions: Tensor) -> Tensor:
        """[n] logarithms of the probabilities, or densities."""
        log_probs, self._entropy = self.kind.evaluate(self.inputs, actions)
        return log_probs

    def entropy(self) -> Tensor:
        """[n] nats."""
        if self._entropy is None:  # else it came with a log-probability
            _, self._entropy = self.kind.evaluate(self.inputs, self.kind.best(self.inputs))
        return self._entropy

    def kl(self, other: ActionDistribution) -> Tensor:
        """[n] divergence of the other one from this one."""
        return kl_divergence(self.kind.columns(self.inputs), self.kind.columns(other.inputs))

    @staticmethod
    def required_model_output_shape(action_space: Any, config: Any = None) -> int:
        """Numbers that a network gives for each row."""
        raise NotImplementedError


class TorchCategorical(ActionDistribution):
    """Over the choices of a Discrete space, from logits [n, choices]."""

    kind_for = staticmethod(cache(lambda size: Categorical([size], is_scalar=True)))

    def logp(self, actions: Tensor) -> Tensor:
        """See `ActionDistribution`; actions are integers of any type."""
        return super().logp(actions.long())

    @staticmethod
    def required_model_output_shape(action_space: Any, config: Any = None) -> int:
        """See `ActionDistribution`."""
        return int(action_space.n)


class TorchDiagGaussian(ActionDistribution):
    """Over the numbers of a Box, from means and logarithms of deviations [n, 2 numbers]."""

    kind_for = staticmethod(cache(lambda size: DiagonalGaussian(size // 2, GAUSSIAN)))

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
