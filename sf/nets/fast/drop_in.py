"""The network of a policy in C, in the place of its `forward`, for code that takes it for a network of torch.

Any loss and any optimizer work: gradients come to the parameters by autograd. Where the network is not as it was made,
or is called in a way that C has no form for, torch computes.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sf.nets.actor_critic import ActorCritic
from sf.nets.fast.native import NativeNetwork, native_network


class DropIn:
    """Outputs of a network without memory, from its only leaf."""

    def __init__(self, network: ActorCritic) -> None:
        """Describes the network; its parameters may change, but not move."""
        self.network = network
        self._gradient = torch.zeros_like(network.flat_gradient)
        self._native = native_network(network, self._gradient)
        self._one_at_a_time = threading.Lock()
        self._places = [
            (module, name, parameter, parameter.data_ptr())
            for module in network.modules()
            for name, parameter in module.named_parameters(recurse=False)
        ]
        """Which module has each parameter, and where it lies."""
        self._parameters = list(network.parameters())
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._name, leaf = next(iter(network.info.observations.items()))
        self._shape = leaf.shape
        self._only_for_params: set[Tensor] = set(network.policy_head.parameters())
        self._only_for_values: set[Tensor] = set(network.value_head.parameters())
        if network.value_encoder is not None:
            self._only_for_params |= set(network.encoder.parameters())
            self._only_for_values |= set(network.value_encoder.parameters())

    def __call__(self, network: ActorCritic, leaf: Tensor) -> tuple[Tensor, Tensor]:
        """Parameters of the action distribution [N, P] and normalized values [N].

        Args:
            network: that is meant.
            leaf: [N, *shape] observations.
        """
        if self._native is None or leaf.requires_grad or not self._fits(network, leaf):
            outputs, values, _ = network({self._name: leaf}, None)
            return outputs, values
        found: tuple[Tensor, Tensor] = _OutputsByAutograd.apply(self, self._native, leaf, *self._parameters)  # type: ignore[no-untyped-call]
        return found

    def gradients(self, d_params: Tensor | None, d_values: Tensor | None, memory: Tensor) -> list[Tensor | None]:
        """The gradient of each parameter, None where none of the derivatives that are there reaches it."""
        assert self._native is not None
        given = d_params if d_params is not None else d_values
        assert given is not None
        num_rows = len(given)
        of_params = given.new_zeros(num_rows, self._native.num_params) if d_params is None else d_params.contiguous()
        of_values = given.new_zeros(num_rows) if d_values is None else d_values.contiguous()
        with self._one_at_a_time:
            self._gradient.zero_()
            self._native.through_outputs(of_params, of_values, memory)
            parts = torch.split(self._gradient.clone(), self._sizes)
        unreached: set[Tensor] = set()
        if d_params is None or d_values is None:
            unreached = self._only_for_params if d_params is None else self._only_for_values
        return [
            None if parameter in unreached else part.view_as(parameter)
            for part, parameter in zip(parts, self._parameters, strict=True)
        ]

    def _fits(self, network: ActorCritic, leaf: Tensor) -> bool:
        return (
            network is self.network
            and leaf.is_cpu
            and tuple(leaf.shape[1:]) == self._shape
            and all(getattr(module, name, None) is p and p.data_ptr() == at for module, name, p, at in self._places)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return DropIn, (self.network,)


class _OutputsByAutograd(torch.autograd.Function):
    """See `DropIn`."""

    @staticmethod
    def forward(
        ctx: Any, drop_in: DropIn, native: NativeNetwork, leaf: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        params, values, ctx.memory = native.outputs_kept(leaf)
        ctx.drop_in = drop_in
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*parameters)
        return params, values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # torch refuses weights that have changed meanwhile
        if all(gradient is None for gradient in grad_outputs):
            return (None,) * len(ctx.needs_input_grad)
        return None, None, None, *ctx.drop_in.gradients(*grad_outputs, ctx.memory)
