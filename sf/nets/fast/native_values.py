"""Networks of values in C, for algorithms whose policy is another network, see `sf.algorithms.critics.Critics`.

One call takes a minibatch through all of them, and one the way back. Between the products of matrices torch makes and
clears memory, and keeps a graph; with layers of 256 that takes as long as the products. The way back leaves out rows
without a derivative: where the least of two values counts, each network goes back with about half of the rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sf.machine.compiled import NoCompilerError
from sf.nets.fast.small_networks import ACTIVATIONS, MOST_LAYERS, WIDEST, Network, Offsets, functions
from sf.nets.flat import FlatVariables
from sf.nets.networks import Mlp, NormalizedMlp

MOST_NETWORKS = 2


class NativeValues:
    """Networks that read the same inputs, whose parameters and gradients are read and written where they are."""

    def __init__(self, towers: Sequence[tuple[Mlp, nn.Linear]], variables: FlatVariables) -> None:
        """Describes networks that `has_native_values` allows.

        Args:
            towers: hidden layers and head of each, all of the same sizes.
            variables: that theirs are views of.

        Raises:
            NoCompilerError: see `sf.machine.compiled.library`.
        """
        self._library, self._parameters, self._kept = functions(), variables.parameters, variables
        self._network = _described(towers, variables)
        self._pointer = ctypes.addressof(self._network)
        self._shape = len(towers), int(self._network.num_params)

    def __call__(self, inputs: Tensor) -> Tensor:
        """[networks, N, outputs] of inputs [N, size] float32, with gradients where torch has them."""
        if torch.is_grad_enabled():
            values: Tensor = _Values.apply(self, self._parameters, inputs)  # type: ignore[no-untyped-call]
            return values
        return self.values_kept(inputs.contiguous())[0]

    def values_kept(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The values, and the memory that `through_values` reads."""
        networks, outputs = self._shape
        memory = torch.empty(self._library.sf_values_scratch(self._pointer, len(inputs)))
        values = torch.empty(networks, len(inputs), outputs)
        self._library.sf_values(
            self._pointer, len(inputs), inputs.data_ptr(), values.data_ptr(), memory.data_ptr()
        )  # fmt: skip
        return values, memory

    def through_values(
        self, inputs: Tensor, d_values: Tensor, memory: Tensor, trains: bool, is_led: bool
    ) -> Tensor | None:
        """From derivatives for values with this memory.

        Args:
            inputs: of the values.
            d_values: [networks, N, outputs].
            memory: of the values.
            trains: add the gradients of all parameters.
            is_led: return the derivatives with respect to the inputs.
        """
        d_inputs = torch.empty_like(inputs) if is_led else None
        self._library.sf_through_values(
            self._pointer, len(inputs), inputs.data_ptr(), d_values.data_ptr(),
            None if d_inputs is None else d_inputs.data_ptr(), trains, memory.data_ptr(),
        )  # fmt: skip
        return d_inputs


class _Values(torch.autograd.Function):
    """`NativeValues`, whose gradients are added to those of the parameters directly."""

    @staticmethod
    def forward(ctx: Any, network: NativeValues, parameters: Tensor, inputs: Tensor) -> Tensor:
        ctx.network, ctx.inputs = network, inputs.detach().contiguous()
        values, ctx.memory = network.values_kept(ctx.inputs)
        return values

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, None, Tensor | None]:
        _, trains, is_led = ctx.needs_input_grad
        d_values = grad_outputs[0].contiguous()
        return None, None, ctx.network.through_values(ctx.inputs, d_values, ctx.memory, trains, is_led)


def has_native_values(towers: Sequence[tuple[nn.Module, nn.Linear]], variables: FlatVariables) -> bool:
    """Whether networks have a form in C: a few linear layers of usual sizes on the CPU."""
    mlps = [mlp for mlp, _ in towers if isinstance(mlp, Mlp) and not isinstance(mlp, NormalizedMlp)]
    return (
        variables.vector.is_cpu
        and len(mlps) == len(towers) <= MOST_NETWORKS
        and all(
            mlp.nonlinearity in ACTIVATIONS
            and 1 <= len(mlp.layers) < MOST_LAYERS
            and max(layer.out_features for layer in _layers(mlp)) <= WIDEST
            for mlp in mlps
        )
    )


def native_values(towers: Sequence[tuple[nn.Module, nn.Linear]], variables: FlatVariables) -> NativeValues | None:
    """The form in C of networks, None where they have none or there is no compiler."""
    if not has_native_values(towers, variables):
        return None
    try:
        return NativeValues([(mlp, head) for mlp, head in towers if isinstance(mlp, Mlp)], variables)
    except NoCompilerError:
        return None  # `native_network` says so


def _described(towers: Sequence[tuple[Mlp, nn.Linear]], variables: FlatVariables) -> Network:
    (first, head), hidden = towers[0], _layers(towers[0][0])
    start = variables.vector.data_ptr()
    network = Network(
        num_inputs=hidden[0].in_features,
        num_layers=len(hidden),
        num_params=head.out_features,
        num_towers=len(towers),
        activation=ACTIVATIONS.index(first.nonlinearity),
        sizes=Offsets(*(layer.out_features for layer in hidden)),
        parameters=variables.parameters.data_ptr(),
        gradients=variables.gradient.data_ptr(),
    )
    for tower, (mlp, of_tower) in enumerate(towers):
        layers = [*_layers(mlp), of_tower]
        network.weights[tower] = Offsets(*((layer.weight.data_ptr() - start) // 4 for layer in layers))
        network.biases[tower] = Offsets(*((layer.bias.data_ptr() - start) // 4 for layer in layers))
    return network


def _layers(mlp: Mlp) -> list[nn.Linear]:
    return [layer for layer in mlp.layers if isinstance(layer, nn.Linear)]
