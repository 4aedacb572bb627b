"""The network that acts, as an algorithm sees it that takes steps of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.given_gradients import scalar_with
from sf.learner.optimizer import FlatAdam
from sf.learner.peers import ALONE, Peers
from sf.learner.trained_network import NonFiniteLoss
from sf.nets.actor_critic import Observations
from sf.nets.fast.native import NativeNetwork, native_network
from sf.nets.fast.native_recurrent import remember_in_c
from sf.policy import ActorCritic

WayBack = Callable[[Tensor, Tensor], None]
"""Adds the gradients of all parameters, from derivatives for what a network puts out."""


class ActingNetwork:
    """The network that acts, with its optimizer and the other learners that train it."""

    def __init__(self, policy: ActorCritic, optimizer: FlatAdam, config: LearnerConfig, peers: Peers = ALONE) -> None:
        """Trains a policy with this optimizer."""
        self.policy, self.peers = policy, peers
        self.learning_rate = config.initial_rate
        """For the next step; follows the schedule."""
        self.num_steps = 0
        """Steps taken through this object since it was made."""
        self._optimizer, self._config = optimizer, config
        self._native = self._native_form(policy)
        self._outputs = self.outputs_of(policy)
        if config.native_update and not config.torch_compile:
            remember_in_c(policy)
        self._read_for_critic = policy.groups.reader_for_critic(policy.inputs)

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
        self.peers.mean_(self.policy.flat_gradient, size)
        norm = self._optimizer.clip()
        if not math.isfinite(norm):
            raise NonFiniteLoss
        self._optimizer.step(self.learning_rate)
        self.num_steps += 1
        return torch.tensor(norm)

    def outputs(self, observations: Observations) -> tuple[Tensor, Tensor]:
        """Parameters of the action distribution [N, n] and values [N], with gradients where torch has them."""
        return self._outputs(observations)

    def outputs_and_way_back(self, observations: Observations) -> tuple[Tensor, Tensor, WayBack]:
        """The outputs without gradients, and a function that takes derivatives for them back to all parameters.

        For gradients that are written out by hand: networks in C need no graph then.
        """
        if self._native is None:
            outputs = self.policy.forward(observations, None)[:2]
            params, values = (output.detach() for output in outputs)
            return params, values, lambda *gradients: scalar_with(gradients, outputs).backward()  # type: ignore[no-untyped-call]
        return self._native.outputs_and_way_back(observations)

    def outputs_apart(self, observations: Observations) -> tuple[Tensor, Tensor]:
        """The same, where the gradient of the values ends at the features; see `ActorCritic.forward_apart`."""
        if self._native is None:
            return self.policy.forward_apart(observations)
        return self._native.outputs(observations, apart=True)

    @property
    def native_update(self) -> bool:
        """Whether networks may be computed in C."""
        return self._config.native_update

    def outputs_of(self, policy: ActorCritic) -> Callable[[Observations], tuple[Tensor, Tensor]]:
        """The function `outputs` of a policy, such as a copy of the acting one: the fastest form that it has."""
        native = self._native if policy is self.policy else self._native_form(policy)
        return native.outputs if native is not None else lambda observations: policy.forward(observations, None)[:2]

    def _native_form(self, policy: ActorCritic) -> NativeNetwork | None:
        return native_network(policy) if self._config.native_update else None

    def inputs(self, observations: Observations) -> dict[str, Tensor]:
        """Observations as the network of the values reads them: normalized, [N, *shape] float32 per leaf."""
        with torch.no_grad():
            return {name: leaf.to(torch.float32) for name, leaf in self._read_for_critic(observations).items()}

    def policy_inputs(self, observations: Observations) -> dict[str, Tensor]:
        """The same as the network of the policy reads them."""
        with torch.no_grad():
            return {name: leaf.to(torch.float32) for name, leaf in self.policy.read_for_policy(observations).items()}

    @torch.no_grad()
    def lead(self, target: ActorCritic, share: float) -> None:
        """Has a copy of the network go this share of the way to it. It reads observations as the network does.

        Args:
            target: the copy, whose statistics become those of the network.
            share: from 0 to 1, which copies it.
        """
        size = len(self.policy.flat_parameters)
        target.flat[:size].lerp_(self.policy.flat[:size], share)
        target.flat[size:].copy_(self.policy.flat[size:])
