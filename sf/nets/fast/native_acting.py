"""Acting with small networks in C: one call for a step of a group, from its observations to what is stored of it.

The numbers are those of `sf.nets.fast.numpy_network`, up to the order of sums. It reads the weights of all policies
where they are, and needs no torch.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np

from sf.config import ModelConfig
from sf.config.written_out import layout
from sf.nets.fast.small_networks import (
    ACTIVATIONS,
    ADAPTIVE_GAUSSIAN,
    CATEGORICAL,
    GAUSSIAN,
    MOST_LAYERS,
    WIDEST,
    Network,
    Offsets,
    TrajectoryMemory,
    functions,
)  # fmt: skip
from sf.shared.arena import Array
from sf.shared.slots import Slots
from sf.spaces import EnvInfo


def has_native_acting(info: EnvInfo, config: ModelConfig) -> bool:
    """Whether a network that is written out in NumPy acts in C as well."""
    (leaf,) = info.observations.values()
    return (
        (leaf.dtype, leaf.is_wide) in (("float32", False), ("float64", True))
        and (config.normalize_input or (config.obs_subtract_mean == 0.0 and config.obs_scale == 1.0))
        and 1 <= len(config.encoder_mlp_layers) <= MOST_LAYERS
        and max(config.encoder_mlp_layers) <= WIDEST
        and config.exploration == "sample"
    )


class NativeActing:
    """Called with a step of a slot, see `sf.inference.small_actors.SmallActor`."""

    def __init__(self, info: EnvInfo, config: ModelConfig, weights: Array, versions: Array, slots: Slots) -> None:
        """Describes the networks and the memory.

        Args:
            info: spaces of the environments.
            config: of networks that `has_native_acting` allows.
            weights: [policies, size] float32, in the order of `layout`; changes are seen.
            versions: [policies] int64, of the weights; changes are seen.
            slots: whose steps it acts in.

        Raises:
            NoCompilerError: see `sf.machine.compiled.library`.
        """
        library, topology = functions(), slots.topology
        self._act = library.sf_act
        networks = (Network * len(weights))(*(_described(info, config, flat) for flat in weights))
        (observations,) = slots.observations.values()
        stored = slots.actions, slots.log_probs, slots.values, slots.policy_version, slots.policy_id
        trajectories = TrajectoryMemory(
            topology.num_policies, topology.every_row_acts, topology.rollout, topology.rows,
            *(array.ctypes.data for array in (observations, *stored)),
        )  # fmt: skip
        memory = np.empty(library.sf_acting_scratch(ctypes.addressof(networks), topology.rows), np.float32)
        self._counts = np.zeros(len(weights) + topology.rows, np.int64)
        self._found = self._counts[: len(weights)]
        self._kept = weights, versions, slots, networks, trajectories, memory  # which pointers point into
        self._networks, self._trajectories = ctypes.addressof(networks), ctypes.addressof(trajectories)
        self._counts_at, self._memory = self._counts.ctypes.data, memory.ctypes.data
        self._versions = versions.ctypes.data

    def __call__(self, slot: int, step: int, noise: Array) -> Array:
        """See `SmallActor`."""
        self._act(
            self._networks, self._trajectories, self._versions, slot, step, noise.ctypes.data, self._counts_at,
            self._memory,
        )  # fmt: skip
        return self._found


class NativeChoice:
    """Called with random numbers and observations, as `sf.nets.fast.numpy_network.SmallNetwork` is."""

    def __init__(self, info: EnvInfo, config: ModelConfig, flat: Array) -> None:
        """Describes the network.

        Args:
            info: spaces of the environments.
            config: of a network that `has_native_acting` allows.
            flat: [size] float32, its weights in the order of `layout`; changes are seen.

        Raises:
            NoCompilerError: see `sf.machine.compiled.library`.
        """
        (leaf,) = info.observations.values()
        self._library, self._dtype, self._action = functions(), np.dtype(leaf.dtype), info.action
        self._network, self._kept = _described(info, config, flat), flat
        self._make_room(0)

    def __call__(self, noise: Array, observations: Array) -> tuple[Array, Array, Array, Array]:
        """Actions, log-probabilities, values and parameters of the distributions."""
        num_rows, num_params = len(observations), self._network.num_params
        if num_rows > len(self._observations):
            self._make_room(num_rows)
        self._observations[:num_rows] = observations.reshape(num_rows, -1)
        self._at.num_rows = num_rows
        self._library.sf_act(*self._pointers[:3], 0, 0, noise.ctypes.data, *self._pointers[3:])
        params = self._memory[: num_rows * num_params].reshape(num_rows, num_params)
        return *(array[:num_rows].copy() for array in self._found), params.copy()

    def _make_room(self, num_rows: int) -> None:
        """For so many rows, of which fewer may be used."""
        network, action = self._network, self._action
        self._observations = np.empty((num_rows, network.num_inputs), self._dtype)
        actions = np.empty(num_rows, np.int64) if action.is_scalar else np.empty((num_rows, len(action.columns)), "f4")
        self._found = actions, *np.empty((2, num_rows), np.float32)
        self._memory = np.empty(self._library.sf_acting_scratch(ctypes.addressof(network), num_rows), np.float32)
        self._words = np.zeros(2 + 2 * num_rows, np.int64)  # version of the network, versions of rows, counts
        version, counts = self._words[1:], self._words[1 + num_rows :]
        stored = self._observations, *self._found, version, version
        self._at = TrajectoryMemory(1, True, 1, num_rows, *(array.ctypes.data for array in stored))
        self._pointers = (
            ctypes.addressof(network), ctypes.addressof(self._at), self._words.ctypes.data, counts.ctypes.data,
            self._memory.ctypes.data,
        )  # fmt: skip


def _described(info: EnvInfo, config: ModelConfig, flat: Array) -> Network:
    """Sizes, and where in the vector of a policy its variables lie."""
    (leaf,) = info.observations.values()
    assert flat.dtype == np.float32
    assert flat.flags.c_contiguous
    offsets, shapes, start = {}, layout(info, config), 0
    for name, shape in shapes.items():
        offsets[name] = start
        start += math.prod(shape)
    towers = ["encoder"] if config.shares_weights else ["encoder", "value_encoder"]
    num_layers = len(config.encoder_mlp_layers)
    network = Network(
        num_inputs=leaf.size,
        num_layers=num_layers,
        num_params=shapes["policy_head.bias"][0],
        num_towers=len(towers),
        activation=ACTIVATIONS.index(config.nonlinearity),
        distribution=CATEGORICAL,
        sizes=Offsets(*config.encoder_mlp_layers),
        policy_weight=offsets["policy_head.weight"],
        policy_bias=offsets["policy_head.bias"],
        value_weight=offsets["value_head.weight"],
        value_bias=offsets["value_head.bias"],
        parameters=flat.ctypes.data,
        clip=config.obs_clip,
        is_wide=leaf.is_wide,
    )
    for tower, prefix in enumerate(towers):
        names = [f"{prefix}.mlp.layers.{index}." for index in range(num_layers)]
        network.weights[tower] = Offsets(*(offsets[f"{name}weight"] for name in names))
        network.biases[tower] = Offsets(*(offsets[f"{name}bias"] for name in names))
    if not info.action.is_scalar:
        network.initial_log_std = math.log(config.initial_stddev)
        network.lowest_log_std, network.highest_log_std = config.log_stddev_limits
        network.distribution = ADAPTIVE_GAUSSIAN if config.adaptive_stddev else GAUSSIAN
        network.log_std = offsets.get("distribution.log_std", 0)
    pointed = {
        "mean": "inputs.readers.0.normalizer.mean",
        "std": "inputs.readers.0.normalizer.std",
        "mean_rest": "inputs.readers.0.normalizer.mean_rest",
        "value_mean": "return_normalizer.mean",
        "value_std": "return_normalizer.std",
    }
    for field, name in pointed.items():
        if name in offsets:
            setattr(network, field, flat.ctypes.data + 4 * offsets[name])
    return network
