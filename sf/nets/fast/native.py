"""Small networks in C: one call forwards and one backwards, in place of some fifty operations of torch.

With two layers of 64 an operation of torch takes longer to begin than to compute. `small_network.c` has the formulas of
`sf.learner.propagation.WrittenOut`; numbers differ by the order of sums. It is compiled for the machine when it is
first needed, see `sf.machine.compiled`.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sf.config.written_out import is_written_out
from sf.machine.compiled import NoCompilerError
from sf.nets.actor_critic import ActorCritic
from sf.nets.distributions import Mixed
from sf.nets.fast.small_networks import (
    ACTIVATIONS,
    ADAPTIVE_GAUSSIAN,
    CATEGORICAL,
    GAUSSIAN,
    MOST_LAYERS,
    WIDEST,
    Network,
    Offsets,
    functions,
)  # fmt: skip
from sf.nets.gaussian import DiagonalGaussian
from sf.nets.inputs import Numbers
from sf.nets.networks import Encoder

log = logging.getLogger(__name__)


class NativeNetwork:
    """The network of a policy, whose parameters and gradients it reads and writes where they are."""

    def __init__(self, policy: ActorCritic, gradient: Tensor | None = None) -> None:
        """Describes a policy that `has_native` allows.

        Args:
            policy: see above.
            gradient: where gradients are added, in the place of ``policy.flat_gradient``.

        Raises:
            NoCompilerError: see `library`.
        """
        self._library = functions()
        self._policy = policy
        self._reader = policy.inputs.readers[0]
        self._gradient = policy.flat_gradient if gradient is None else gradient
        self._network = _described(policy, self._gradient)
        self._pointer = ctypes.addressof(self._network)
        self.num_params = int(self._network.num_params)
        self._memory = torch.empty(0)
        self._num_rows = 0

    def outputs(self, observations: Mapping[str, Tensor], apart: bool = False) -> tuple[Tensor, Tensor]:
        """Parameters of the action distribution [N, P] and normalized values [N], with gradients where torch has them.

        Args:
            observations: as the environment gave them, of the only leaf.
            apart: gradients of the values end at the features, see `ActorCritic.forward_apart`.
        """
        (leaf,) = observations.values()
        if torch.is_grad_enabled():
            found: tuple[Tensor, Tensor] = _Outputs.apply(self, self._policy.flat_parameters, leaf, apart)  # type: ignore[no-untyped-call]
            return found
        return self.outputs_kept(leaf)[:2]

    def outputs_and_way_back(
        self, observations: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Callable[[Tensor, Tensor], None]]:
        """The outputs without gradients, and a function that adds those of all parameters from derivatives for them."""
        (leaf,) = observations.values()
        params, values, memory = self.outputs_kept(leaf)

        def back(d_params: Tensor, d_values: Tensor) -> None:
            self.through_outputs(d_params.contiguous(), d_values.contiguous(), memory)

        return params, values, back

    def outputs_kept(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs, and the memory that `through_outputs` reads."""
        num_rows = len(observations)
        inputs = self._read(observations)
        memory = torch.empty(self._library.sf_scratch(self._pointer, num_rows))
        params, values = torch.empty(num_rows, self.num_params), torch.empty(num_rows)
        self._library.sf_outputs(
            self._pointer, num_rows, inputs.data_ptr(), params.data_ptr(), values.data_ptr(), memory.data_ptr()
        )
        return params, values, memory

    def through_outputs(self, d_params: Tensor, d_values: Tensor, memory: Tensor, apart: bool = False) -> None:
        """Adds the gradients of all parameters, from derivatives for outputs with this memory; see `outputs`."""
        self._library.sf_through_outputs(
            self._pointer, len(d_values), d_params.data_ptr(), d_values.data_ptr(), apart, memory.data_ptr()
        )

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Evaluates actions.

        Args:
            observations: [N, size] float32, as the environment gave them.
            actions: [N] int64, or [N, d] float32.

        Returns:
            Log-probabilities, entropies and normalized values [N], and the parameters of the distribution [N, P].
        """
        num_rows = len(actions)
        if num_rows != self._num_rows:
            self._num_rows = num_rows
            self._memory = torch.empty(self._library.sf_scratch(self._pointer, num_rows))
        self._inputs, self._actions = self._read(observations), actions.contiguous()
        found = torch.empty(3 + self.num_params, num_rows)
        log_probs, entropies, values = found[:3].unbind()
        params = found[3:].view(num_rows, self.num_params)
        self._library.sf_forward(
            self._pointer, num_rows, self._inputs.data_ptr(), self._actions.data_ptr(), log_probs.data_ptr(),
            entropies.data_ptr(), values.data_ptr(), params.data_ptr(), self._memory.data_ptr(),
        )  # fmt: skip
        self._entropies, self._params = entropies, params
        return log_probs, entropies, values, params

    def backward(self, d_log_probs: Tensor, d_entropies: Tensor, d_values: Tensor) -> None:
        """Adds the gradients of all parameters, from the derivatives [N] of a loss for what `forward` gave last."""
        self._library.sf_backward(
            self._pointer, self._num_rows, self._actions.data_ptr(), self._entropies.data_ptr(),
            self._params.data_ptr(), d_log_probs.data_ptr(), d_entropies.data_ptr(), d_values.data_ptr(),
            self._memory.data_ptr(),
        )  # fmt: skip

    def _read(self, observations: Tensor) -> Tensor:
        """What the file in C takes: observations that it prepares itself, or else prepared ones."""
        inputs: Tensor = observations if self._network.mean else self._reader(observations)
        return inputs.contiguous()


class _Outputs(torch.autograd.Function):
    """`NativeNetwork.outputs`, whose gradients are added to those of the parameters directly."""

    @staticmethod
    def forward(
        ctx: Any, network: NativeNetwork, parameters: Tensor, leaf: Tensor, apart: bool
    ) -> tuple[Tensor, Tensor]:
        params, values, ctx.memory = network.outputs_kept(leaf)
        ctx.network, ctx.apart = network, apart
        return params, values

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, None, None, None]:
        d_params, d_values = (gradient.contiguous() for gradient in grad_outputs)
        ctx.network.through_outputs(d_params, d_values, ctx.memory, ctx.apart)
        return None, None, None, None


def has_native(policy: ActorCritic) -> bool:
    """Whether the outputs of a policy have a form in C: what is written out, on the CPU, with layers of usual sizes."""
    return (
        policy.flat.device.type == "cpu"
        and not policy.bf16
        and is_written_out(policy.info, policy.config)
        and 1 <= len(policy.config.encoder_mlp_layers) <= MOST_LAYERS
        and max(policy.config.encoder_mlp_layers) <= WIDEST
        and not isinstance(policy.distribution, Mixed)
    )


def native_network(policy: ActorCritic, gradient: Tensor | None = None) -> NativeNetwork | None:
    """The form in C of a policy, None where it has none or there is no compiler, which is told once."""
    if not has_native(policy):
        return None
    try:
        return NativeNetwork(policy, gradient)
    except NoCompilerError as error:
        log.info("Small networks train with torch alone, which takes twice as long: %s.", error)
        return None


def _described(policy: ActorCritic, gradient: Tensor) -> Network:
    """Sizes, and where in the vectors of a policy its parameters lie."""
    (reader,) = policy.inputs.readers
    assert isinstance(reader, Numbers)
    towers = [policy.encoder] if policy.value_encoder is None else [policy.encoder, policy.value_encoder]
    layers = [_linear_layers(tower) for tower in towers]
    place = _places(policy)
    network = Network(
        num_inputs=layers[0][0].in_features,
        num_layers=len(layers[0]),
        num_params=policy.policy_head.out_features,
        num_towers=len(towers),
        activation=ACTIVATIONS.index(policy.config.nonlinearity),
        distribution=CATEGORICAL,
        sizes=Offsets(*(layer.out_features for layer in layers[0])),
        policy_weight=place(policy.policy_head.weight),
        policy_bias=place(policy.policy_head.bias),
        value_weight=place(policy.value_head.weight),
        value_bias=place(policy.value_head.bias),
        parameters=policy.flat_parameters.data_ptr(),
        gradients=gradient.data_ptr(),
        clip=reader.clip,
    )
    for tower, of_tower in enumerate(layers):
        network.weights[tower] = Offsets(*(place(layer.weight) for layer in of_tower))
        network.biases[tower] = Offsets(*(place(layer.bias) for layer in of_tower))
    if isinstance(distribution := policy.distribution, DiagonalGaussian):
        network.initial_log_std = distribution.initial_log_std
        network.lowest_log_std, network.highest_log_std = policy.config.log_stddev_limits
        network.distribution = ADAPTIVE_GAUSSIAN if distribution.log_std is None else GAUSSIAN
        network.log_std = 0 if distribution.log_std is None else place(distribution.log_std)
    (leaf,) = policy.info.observations.values()
    if reader.normalizer is not None and leaf.dtype == "float32" and not leaf.is_wide:
        network.mean, network.std = reader.normalizer.mean.data_ptr(), reader.normalizer.std.data_ptr()
    return network


def _linear_layers(tower: Any) -> list[torch.nn.Linear]:
    assert isinstance(tower, Encoder)
    assert tower.mlp is not None
    return [layer for layer in tower.mlp.layers if isinstance(layer, torch.nn.Linear)]


def _places(policy: ActorCritic) -> Any:
    """A function from a parameter to its place in the vector of all of them."""
    start = policy.flat_parameters.data_ptr()
    return lambda parameter: (parameter.data_ptr() - start) // parameter.element_size()
