"""The forward pass of a small network in NumPy, where calling an operation of torch takes longer than its work.

With two layers of 64 it takes half of the time of torch for 16 rows and two thirds for 64. From `MOST_PRODUCTS` on
torch is the faster one. It needs no torch at all, so a rollout worker can act for itself.

Only the usual networks are written out: one vector, one or two towers of linear layers, one choice or numbers of a
normal distribution. The formulas are those of `sf.nets.networks` and `sf.nets.distributions`. Processes that have both
compare the results: inference workers, and the learner where rollout workers act.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from sf.config import ModelConfig
from sf.config.written_out import layout
from sf.shared.arena import Array
from sf.spaces import EnvInfo, LeafSpec

Chooser = Callable[[Array, Array], tuple[Array, Array]]
"""From parameters of the actions and random numbers to actions and log-probabilities."""
Layers = list[tuple[Array, Array]]
"""Weights, [inputs, outputs], and bias of each."""


class SmallNetwork:
    """Acts with weights that are in memory of others, and sees it when they change there."""

    def __init__(self, info: EnvInfo, config: ModelConfig, weights: Array | Mapping[str, Array]) -> None:
        """Takes views of the weights.

        Args:
            info: spaces of the environments.
            config: of the network, which must be written out here.
            weights: [size] float32, in the order of `layout`; or parts of it by the names there.
        """
        (leaf,) = info.observations.values()
        variables = dict(weights) if isinstance(weights, Mapping) else _views(layout(info, config), weights)
        self._read = _reader(leaf, config, variables)
        self._activate = ACTIVATIONS[config.nonlinearity]
        self._layers = _layers(variables, "encoder.mlp.layers.")
        self._layers_of_value = _layers(variables, "value_encoder.mlp.layers.")
        ((self._to_params, self._params_bias),) = _layers(variables, "policy_head.")
        ((self._to_value, self._value_bias),) = _layers(variables, "value_head.")
        self._returns = variables.get("return_normalizer.mean"), variables.get("return_normalizer.std")
        self._choose = _chooser(info, config, variables)

    @np.errstate(all="ignore")  # torch says nothing either; the learner finds values that are no numbers
    def __call__(self, noise: Array, observations: Array) -> tuple[Array, Array, Array, Array]:
        """Acts.

        Args:
            noise: [B, n] random numbers, as the distribution of the actions draws them.
            observations: [B, *shape], as the environment gave them.

        Returns:
            Actions, log-probabilities [B], values [B], and parameters of the distribution [B, n].
        """
        params, values = self._outputs(observations)
        actions, log_probs = self._choose(params, noise)
        return actions, log_probs, values, params

    @np.errstate(all="ignore")
    def values(self, observations: Array) -> Array:
        """Values [B] of observations [B, *shape]."""
        return self._outputs(observations)[1]

    def _outputs(self, observations: Array) -> tuple[Array, Array]:
        inputs = self._read(observations)
        features = self._through(self._layers, inputs)
        params = features.dot(self._to_params)
        params += self._params_bias
        if self._layers_of_value:
            features = self._through(self._layers_of_value, inputs)
        values = features.dot(self._to_value)[:, 0]
        values += self._value_bias
        mean, std = self._returns
        if mean is not None and std is not None:
            values *= std
            values += mean
        return params, values

    def _through(self, layers: Layers, inputs: Array) -> Array:
        activate = self._activate
        for weights, bias in layers:
            inputs = inputs.dot(weights)
            inputs += bias
            inputs = activate(inputs)
        return inputs


def noise_source(info: EnvInfo, random: np.random.Generator) -> Callable[[int], Array]:
    """The source of random numbers, [B, n] float32, for the actions in B rows; see `sf.nets.distributions`."""
    if info.action.is_scalar:
        (size,) = info.action.choices
        exponential = random.standard_exponential

        @np.errstate(divide="ignore")  # of a time of exactly 0
        def times(num_rows: int) -> Array:
            drawn = exponential((num_rows, size))  # float64: one in ten million of float32 would be 0, and win
            return np.log(drawn, out=drawn).astype(np.float32)

        return times
    normal, size = random.standard_normal, len(info.action.columns)
    return lambda num_rows: normal((num_rows, size), np.float32)


def _views(shapes: dict[str, tuple[int, ...]], flat: Array) -> dict[str, Array]:
    views, start = {}, 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        views[name] = flat[start:stop].reshape(shape)
        start = stop
    assert start == flat.size, f"{flat.size} numbers, {start} are needed"
    return views


def _layers(variables: dict[str, Array], prefix: str) -> Layers:
    """The linear layers whose names begin so, in their order."""
    own = [name.removesuffix("weight") for name in variables if name.startswith(prefix) and name.endswith("weight")]
    return [(variables[f"{name}weight"].T, variables[f"{name}bias"]) for name in own]


def _reader(leaf: LeafSpec, config: ModelConfig, variables: dict[str, Array]) -> Callable[[Array], Array]:
    """From observations as they are stored to the inputs of the first layer."""
    subtract, scale, clip = config.obs_subtract_mean, config.obs_scale, np.float32(config.obs_clip)
    names = ("mean", "std", "mean_rest")
    mean, std, mean_rest = (variables.get(f"inputs.readers.0.normalizer.{name}") for name in names)
    is_flat, size = len(leaf.shape) == 1, leaf.size
    shifted_dtype = np.float64 if leaf.is_wide else np.float32

    def read(observations: Array) -> Array:
        if mean is not None and std is not None:
            x = np.subtract(observations, mean, dtype=shifted_dtype)
            if mean_rest is not None:
                x -= mean_rest
                x = x.astype(np.float32)
            x /= std
            np.minimum(np.maximum(x, -clip, out=x), clip, out=x)
        else:
            x = observations
            if subtract != 0.0:
                x = np.subtract(x, subtract, dtype=shifted_dtype)
            x = x.astype(np.float32, copy=False)
            if scale != 1.0:
                x = x / np.float32(scale)
        return x if is_flat else x.reshape(len(x), size)

    return read


def _chooser(info: EnvInfo, config: ModelConfig, variables: dict[str, Array]) -> Chooser:
    if not info.action.is_scalar:
        return _numbers_chooser(info, config, variables)
    return _epsilon_greedy(variables["distribution.epsilon"]) if "distribution.epsilon" in variables else _choose_one


def _epsilon_greedy(epsilon: Array) -> Chooser:
    """See `EpsilonGreedy`."""

    def choose(values: Array, noise: Array) -> tuple[Array, Array]:
        share = epsilon / np.float32(values.shape[1])
        logits = np.full_like(values, np.log(share))
        logits[np.arange(len(values)), values.argmax(1)] = np.log(np.float32(1.0) - epsilon + share)
        return _choose_one(logits, noise)

    return choose


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


def _numbers_chooser(info: EnvInfo, config: ModelConfig, variables: dict[str, Array]) -> Chooser:
    """See `DiagonalGaussian` and `NoisyAction`."""
    size, log_std_of_all = len(info.action.columns), variables.get("distribution.log_std")
    log_noise = variables.get("distribution.log_noise")
    constant, initial_log_std = 0.5 * size * math.log(2 * math.pi), math.log(config.initial_stddev)
    lowest, highest = config.log_stddev_limits

    def choose(params: Array, noise: Array) -> tuple[Array, Array]:
        mean, log_std = params, log_std_of_all
        if log_noise is not None:
            mean, log_std = np.tanh(params), np.broadcast_to(log_noise, size)
        elif log_std is None:
            mean = params[:, :size]
            log_std = np.minimum(np.maximum(params[:, size:] + initial_log_std, lowest), highest)
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
