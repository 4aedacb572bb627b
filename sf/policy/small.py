"""Acting with a small network in NumPy, where calling an operation of torch takes longer than its work.

With two layers of 64 it takes half to two thirds of the time of a recording (see `sf.policy.tracing`) for 16 rows,
and from `MOST_PRODUCTS` on torch is the faster one.

Only what most people train on vectors is written out: one vector, one or two towers of linear layers, one choice or
numbers of a normal distribution. The formulas are those of `sf.policy.networks` and `sf.policy.distributions`, and who
uses this compares the results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sf.arena import Array
from sf.policy.actor_critic import ActorCritic
from sf.policy.distributions import HALF_LOG_TWO_PI, Categorical, DiagonalGaussian
from sf.policy.inputs import Numbers
from sf.policy.networks import Mlp

MOST_PRODUCTS = 600_000
"""Multiplications of a forward pass: 128 rows of a network with 4,700 weights, 8 rows with 70,000."""

Program = Callable[..., tuple[Tensor, ...]]
"""From random numbers and observations, [B, ...], to actions, log-probabilities, values, parameters of the actions."""

Chooser = Callable[[Array, Array], tuple[Array, Array]]
"""From parameters of the actions and random numbers to actions and log-probabilities."""

Layers = list[tuple[Array, Array]]
"""Weights, [inputs, outputs], and bias of each."""


def most_rows(network: ActorCritic) -> int:
    """The largest batch for which the program of this network is the faster one."""
    return MOST_PRODUCTS // network.flat.numel()


def small_program(network: ActorCritic) -> Program | None:
    """What the network does, from tensors to tensors; None if it has parts that are not written out here.

    The program sees it when the weights change in place.
    """
    readers = list(network.inputs.readers)
    if not network.flat.is_cpu or network.state_size or len(network.info.observations) != 1 or len(readers) != 1:
        return None
    towers = [tower for tower in (network.encoder, network.value_encoder) if tower is not None]
    mlps = [getattr(tower, "mlp", None) for tower in towers]
    (reader,), choose, activate = readers, _chooser(network), ACTIVATIONS.get(network.config.nonlinearity)
    if not (isinstance(reader, Numbers) and len(reader.shape) == 1 and all(isinstance(mlp, Mlp) for mlp in mlps)):
        return None
    if choose is None or activate is None:
        return None
    read = _reader(reader)
    layers, *layers_of_value = [_layers(mlp.layers) for mlp in mlps if isinstance(mlp, Mlp)]
    (to_params, params_bias), (to_value, value_bias) = _layers([network.policy_head, network.value_head])
    scale = network.return_normalizer
    mean, std = (None, None) if scale is None else (scale.mean.numpy(), scale.std.numpy())

    @np.errstate(all="ignore")  # torch says nothing either; who learns from it finds what is no number
    def program(noise: Tensor, observations: Tensor) -> tuple[Tensor, ...]:
        inputs = read(observations.numpy())
        features = _through(layers, activate, inputs)
        params = features.dot(to_params)
        params += params_bias
        if layers_of_value:
            features = _through(layers_of_value[0], activate, inputs)
        values = features.dot(to_value)[:, 0]
        values += value_bias
        if std is not None:
            values = values * std + mean
        actions, log_probs = choose(params, noise.numpy())
        arrays = actions, log_probs, values, params
        return tuple([torch.from_numpy(array) for array in arrays])

    return program


def _through(layers: Layers, activate: Callable[[Array], Array], inputs: Array) -> Array:
    for weights, bias in layers:
        inputs = inputs.dot(weights)
        inputs += bias
        inputs = activate(inputs)
    return inputs


def _layers(modules: Any) -> Layers:
    """Views of the parameters of linear layers."""
    linear: list[nn.Linear] = list(modules)
    return [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in linear]


def _reader(reader: Numbers) -> Callable[[Array], Array]:
    """From observations as they are stored to the inputs of the first layer."""
    normalizer, clip = reader.normalizer, np.float32(reader.clip)
    mean, std = (None, None) if normalizer is None else (normalizer.mean.numpy(), normalizer.std.numpy())

    def read(observations: Array) -> Array:
        x = observations.astype(np.float32, copy=False)
        if reader.subtract != 0.0:
            x = x - reader.subtract
        if reader.scale != 1.0:
            x = x / reader.scale
        if mean is not None:
            x = x - mean
            x /= std
            np.minimum(np.maximum(x, -clip, out=x), clip, out=x)
        return x.reshape(len(x), -1) if reader.flat else x

    return read


def _chooser(network: ActorCritic) -> Chooser | None:
    distribution = network.distribution
    if isinstance(distribution, DiagonalGaussian):
        return _numbers_chooser(distribution)
    return _choose_one if isinstance(distribution, Categorical) and network.info.action.is_scalar else None


def _choose_one(logits: Array, noise: Array) -> tuple[Array, Array]:
    """See `Categorical`. The choices come first, so that each operation goes along the rows."""
    logits = logits.T
    actions = np.subtract(logits, noise.T).argmax(0)
    shifted = logits - np.maximum.reduce(logits, 0)
    chosen = np.choose(actions, shifted) if len(shifted) <= MOST_CHOICES else shifted[actions, np.arange(len(actions))]
    log_probs = chosen - np.log(np.add.reduce(np.exp(shifted, out=shifted), 0))
    return actions, log_probs


MOST_CHOICES = 31
"""`np.choose` takes no more."""


def _numbers_chooser(distribution: DiagonalGaussian) -> Chooser:
    """See `DiagonalGaussian`."""
    size, free = distribution.size, distribution.log_std
    log_std_of_all = None if free is None else free.detach().numpy()
    constant = size * HALF_LOG_TWO_PI

    def choose(params: Array, noise: Array) -> tuple[Array, Array]:
        mean, log_std = params, log_std_of_all
        if log_std is None:
            mean = params[:, :size]
            log_std = np.minimum(np.maximum(params[:, size:] + distribution.initial_log_std, -10.0), 5.0)
        std = np.exp(log_std)
        actions = noise * std
        actions += mean
        distances = actions - mean
        distances /= std
        distances *= distances
        distances *= -0.5
        distances -= log_std
        log_probs = np.add.reduce(distances, 1)
        log_probs -= constant
        return actions, log_probs

    return choose


def _relu(x: Array) -> Array:
    activated: Array = np.maximum(x, 0.0, out=x)
    return activated


def _tanh(x: Array) -> Array:
    activated: Array = np.tanh(x, out=x)
    return activated


def _elu(x: Array) -> Array:
    below = np.exp(np.minimum(x, 0.0))
    below -= 1.0
    x = np.maximum(x, 0.0, out=x)
    x += below
    return x


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": _tanh, "relu": _relu, "elu": _elu}
"""In place."""
