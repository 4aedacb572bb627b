"""The evaluation of a minibatch, and the gradient of its loss.

Torch records every operation and goes the way back by itself. For the usual networks on vectors the way back is written
out here. With two layers of 64 the recorded one takes half of an optimizer step, most of it for nodes, checks and
calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from sf.config.written_out import is_written_out
from sf.learner.algorithm import Algorithm, Losses
from sf.learner.dataset import Transitions
from sf.learner.given_gradients import scalar_with
from sf.nets.activations import GRADIENTS
from sf.nets.actor_critic import Observations
from sf.nets.categorical import Categorical
from sf.nets.distributions import Mixed
from sf.nets.fast.compiling import Compiled
from sf.nets.fast.native import NativeNetwork, native_network
from sf.nets.gaussian import DiagonalGaussian
from sf.nets.networks import Encoder
from sf.policy import ActorCritic, Evaluation, Sequences


class Propagation(Protocol):
    """Forwards, then backwards; one minibatch at a time."""

    def evaluate(self, observations: Observations, actions: Tensor, sequences: Sequences | None = None) -> Evaluation:
        """See `ActorCritic.evaluate`."""

    def backward(self, evaluation: Evaluation, minibatch: Transitions) -> Losses | None:
        """Adds the derivatives of the loss to the gradients of the parameters, for what `evaluate` gave last.

        Returns:
            The losses, or None where only their derivatives were computed.
        """


def propagation_through(policy: ActorCritic, algorithm: Algorithm) -> Propagation:
    """The fastest one."""
    if algorithm.config.torch_compile:
        return Recorded(Compiled(policy), algorithm)
    is_known = type(policy.distribution) in (Categorical, DiagonalGaussian) and not policy.bf16
    if algorithm.has_gradients and is_known and is_written_out(policy.info, policy.config):
        network = native_network(policy) if algorithm.config.native_update else None
        return WrittenOut(policy, algorithm) if network is None else Native(network, algorithm)
    return Recorded(policy.evaluate, algorithm)


class Recorded:
    """By torch, for every network and every algorithm."""

    def __init__(self, evaluate: Callable[..., Evaluation], algorithm: Algorithm) -> None:
        self.evaluate, self._algorithm = evaluate, algorithm

    def backward(self, evaluation: Evaluation, minibatch: Transitions) -> Losses | None:
        """See `Propagation`."""
        if self._algorithm.has_gradients:
            gradients, losses = self._algorithm.gradients(evaluation, minibatch), None
            loss = scalar_with(gradients, evaluation[:3])
        else:
            losses = self._algorithm.loss(evaluation, minibatch)
            loss = losses.total
        loss.backward()  # type: ignore[no-untyped-call]
        return losses


class Native:
    """The same networks as those of `WrittenOut`, in C. Numbers differ by the order of sums."""

    def __init__(self, network: NativeNetwork, algorithm: Algorithm) -> None:
        self._network, self._algorithm = network, algorithm

    @torch.no_grad()
    def evaluate(self, observations: Observations, actions: Tensor, sequences: Sequences | None = None) -> Evaluation:
        """See `Propagation`."""
        assert sequences is None, "a network with memory has no form in C"
        (leaf,) = observations.values()
        return Evaluation(*self._network.forward(leaf, actions))

    @torch.no_grad()
    def backward(self, evaluation: Evaluation, minibatch: Transitions) -> None:
        """See `Propagation`."""
        self._network.backward(*(part.contiguous() for part in self._algorithm.gradients(evaluation, minibatch)))


class WrittenOut:
    """For one vector, one or two towers of linear layers, and one choice or numbers of a normal distribution.

    It evaluates the numbers of `ActorCritic.evaluate`, by the same operations.
    """

    def __init__(self, policy: ActorCritic, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._read = policy.inputs.forward
        self._tower = _Tower(policy.encoder)
        self._tower_of_values = None if policy.value_encoder is None else _Tower(policy.value_encoder)
        self._policy_head, self._value_head = policy.policy_head, policy.value_head
        assert not isinstance(policy.distribution, Mixed)
        self._evaluate_actions = policy.distribution.evaluate_by_hand

    @torch.no_grad()
    def evaluate(self, observations: Observations, actions: Tensor, sequences: Sequences | None = None) -> Evaluation:
        """See `Propagation`."""
        assert sequences is None, "a network with memory is not written out"
        (inputs,) = self._read(observations).values()
        features = self._tower.forward(inputs)
        features_of_values = features if self._tower_of_values is None else self._tower_of_values.forward(inputs)
        params = functional.linear(features, self._policy_head.weight, self._policy_head.bias)
        values = functional.linear(features_of_values, self._value_head.weight, self._value_head.bias).squeeze(-1)
        log_probs, entropy, self._gradient_of_params = self._evaluate_actions(params, actions)
        return Evaluation(log_probs, entropy, values, params)

    @torch.no_grad()
    def backward(self, evaluation: Evaluation, minibatch: Transitions) -> None:
        """See `Propagation`."""
        gradients = self._algorithm.gradients(evaluation, minibatch)
        d_params = self._gradient_of_params(gradients.log_probs, gradients.entropy)
        d_values = gradients.normalized_values.unsqueeze(-1)
        _add_gradient(self._policy_head, d_params, self._tower.features)
        _add_gradient(self._value_head, d_values, (self._tower_of_values or self._tower).features)
        d_features = d_params.mm(self._policy_head.weight)
        if self._tower_of_values is None:
            d_features.addmm_(d_values, self._value_head.weight)
        else:
            self._tower_of_values.backward(d_values.mm(self._value_head.weight))
        self._tower.backward(d_features)


class _Tower:
    """Linear layers, each followed by the nonlinearity."""

    def __init__(self, encoder: nn.Module) -> None:
        assert isinstance(encoder, Encoder)
        assert encoder.mlp is not None
        self._layers = [layer for layer in encoder.mlp.layers if isinstance(layer, nn.Linear)]
        self._activation = encoder.mlp.activation
        self._gradient = GRADIENTS[encoder.mlp.nonlinearity]
        self._results: list[Tensor] = []

    @property
    def features(self) -> Tensor:
        """[B, features] that `forward` gave last."""
        return self._results[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Remembers the output of each layer, and the input of the first one, until `backward`."""
        self._results = [x]
        for layer in self._layers:
            x = self._activation(functional.linear(x, layer.weight, layer.bias))
            self._results.append(x)
        return x

    def backward(self, gradient: Tensor) -> None:
        """From the derivatives [B, features] of the last result."""
        while len(self._results) > 1:
            layer = self._layers[len(self._results) - 2]
            gradient = self._gradient(gradient, self._results.pop())
            _add_gradient(layer, gradient, self._results[-1])
            if len(self._results) > 1:
                gradient = gradient.mm(layer.weight)
        self._results.clear()


def _add_gradient(layer: nn.Linear, gradient: Tensor, x: Tensor) -> None:
    """Adds the gradient of a linear layer with these inputs, from the derivatives [B, outputs] of its results."""
    of_weight, of_bias = layer.weight.grad, layer.bias.grad
    assert of_weight is not None
    assert of_bias is not None
    # The smaller side as the rows of the product: the other way takes two to four times as long for 4 and 64.
    of_weight.add_(x.t().mm(gradient).t() if x.shape[1] < gradient.shape[1] else gradient.t().mm(x))
    of_bias.add_(gradient.sum(0))
