"""Networks beside the acting one, each with an Adam of its own on one vector of parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sf.learner.algorithm_state import entries
from sf.learner.optimizer import Adam, clip_gradient
from sf.learner.peers import ALONE, Peers
from sf.nets.flat import FlatVariables


@runtime_checkable
class HasFastForm(Protocol):
    """A module that can be computed in another way."""

    def fast_form(self, variables: FlatVariables) -> Callable[..., Tensor] | None:
        """The same function with its variables where they are; None where there is none."""


class NonFiniteLoss(ArithmeticError):
    """A gradient was not finite; nothing was changed by it."""


class TrainedNetwork(nn.Module):
    """A module with its optimizer, saved and resumed as one.

    Its variables lie in `flat`, so that a step, a copy and an average take one operation each.
    """

    def __init__(
        self, module: nn.Module, learning_rate: float, device: torch.device, max_grad_norm: float = 0.0
    ) -> None:
        """Moves the variables of a module into one vector.

        Args:
            module: with float32 variables only.
            learning_rate: of Adam.
            device: that holds it.
            max_grad_norm: largest norm of a gradient; 0 for no limit.
        """
        super().__init__()
        self.module, self.learning_rate, self.max_grad_norm = module, learning_rate, max_grad_norm
        self._variables = FlatVariables(module, device)
        self._function = _function_of(module, self._variables)
        self._trained = [self._variables.parameters, *module.parameters()]
        self._adam = Adam(self._variables.parameters, self._variables.gradient)
        self.register_buffer("exp_avg", self._adam.exp_avg)
        self.register_buffer("exp_avg_sq", self._adam.exp_avg_sq)
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.int64))
        self.num_steps: Tensor

    @property
    def trained(self) -> Sequence[Tensor]:
        """What its optimizer moves: all at once, and each by itself."""
        return self._trained

    @property
    def flat(self) -> Tensor:
        """All variables of the module."""
        return self._variables.vector

    def forward(self, *args: Tensor) -> Tensor:
        """The result of the module."""
        return self._function(*args)

    def target(self) -> TargetNetwork:
        """A copy that does not train."""
        return TargetNetwork(self.module, self.flat.device)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Meanwhile gradients pass through to the inputs alone, which saves a third of the way back."""
        self._train(False)
        try:
            yield
        finally:
            self._train(True)

    def _train(self, trains: bool) -> None:
        for parameter in self._trained:
            parameter.requires_grad = trains

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Forgets the gradient; the vector that holds it stays."""
        self._variables.gradient.zero_()

    def step(self, size: int, peers: Peers = ALONE) -> Tensor:
        """An optimizer step along the gradient that is there, which is forgotten then; returns its norm.

        Args:
            size: transitions behind the gradient, its weight among those of the other learners.
            peers: the other learners.

        Raises:
            NonFiniteLoss: the gradient is not finite.
        """
        try:
            norm = averaged_and_clipped(self._variables.gradient, size, peers, self.max_grad_norm)
            self._adam.num_steps = int(self.num_steps)
            self._adam.step(self.learning_rate)
            self.num_steps += 1
        finally:
            self.zero_grad()
        return norm


def networks_beside(algorithm: object) -> list[TrainedNetwork]:
    """Those in the attributes of an algorithm, and in lists, tuples and dicts there."""
    parts = (part for name, value in vars(algorithm).items() for _, part in entries(name, value))
    return [part for part in parts if isinstance(part, TrainedNetwork)]


class TargetNetwork(nn.Module):
    """A network that follows another one."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        """Copies a module."""
        super().__init__()
        self.module = copy.deepcopy(module)
        self._variables = FlatVariables(self.module, device)
        self._function = _function_of(self.module, self._variables)

    @torch.no_grad()
    def forward(self, *args: Tensor) -> Tensor:
        """The result of the module, without gradient."""
        return self._function(*args)

    @torch.no_grad()
    def follow(self, flat: Tensor, share: float) -> None:
        """Moves this share of the way to the variables of the other network; 1 copies them."""
        self._variables.vector.lerp_(flat, share)


def _function_of(module: nn.Module, variables: FlatVariables) -> Callable[..., Tensor]:
    """The module as a function, in the fastest form that it has."""
    fast = module.fast_form(variables) if isinstance(module, HasFastForm) else None
    return module.forward if fast is None else fast


def averaged_and_clipped(gradient: Tensor, size: int, peers: Peers, max_norm: float) -> Tensor:
    """Averages a gradient over all learners and limits its norm, in place; returns the norm before.

    Raises:
        NonFiniteLoss: it is not finite.
    """
    peers.mean_(gradient, size)
    norm = clip_gradient(gradient, max_norm)
    if not math.isfinite(norm.item()):
        raise NonFiniteLoss
    return norm
