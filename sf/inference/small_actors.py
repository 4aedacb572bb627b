"""Acting in a rollout worker: small networks of all policies, from the observations of a step to what is stored of it.

It needs no torch. Networks act in C where they can, and else in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from sf.config import Config, ModelConfig
from sf.config.written_out import size_of
from sf.console import Console
from sf.machine.compiled import NoCompilerError
from sf.nets.fast.native_acting import NativeActing, has_native_acting
from sf.nets.fast.numpy_network import SmallNetwork, noise_source
from sf.shared.arena import Arena, Array
from sf.shared.slot_fields import slot_memory
from sf.shared.slots import Slots
from sf.shared.topology import Topology
from sf.spaces import EnvInfo

COMPARED_ENVS = 8

TOLERANCE = 2e-5
"""Sums have another order in C. Differences stay below this share of the largest output of the network."""


class SmallActor(Protocol):
    """Acts for all policies in one step of a slot."""

    def __call__(self, slot: int, step: int, noise: Array) -> Array:
        """Writes actions, log-probabilities, values and versions; after the last step values only.

        Args:
            slot: that is being filled.
            step: 0 to T; the observation after the last step belongs to the policies that acted in that step.
            noise: [rows, n] float32, see `sf.nets.fast.numpy_network.noise_source`.

        Returns:
            [policies] the number of rows of each policy, good until the next call.
        """


class NumpyActor:
    """Acts in NumPy, for one policy after the other."""

    def __init__(self, networks: Sequence[SmallNetwork], versions: Array, slots: Slots) -> None:
        """Acts in the steps of these slots; versions are those of the networks."""
        self._networks, self._versions = networks, versions
        self._slots, self._last = slots, slots.topology.rollout - 1
        (self._observations,) = slots.observations.values()
        self._counts = np.full(len(networks), slots.topology.rows)

    def __call__(self, slot: int, step: int, noise: Array) -> Array:
        """See `SmallActor`."""
        if self._slots.topology.every_row_acts:
            self._act(0, slice(None), slot, step, noise)
            return self._counts
        acting = self._slots.policy_id[slot, min(step, self._last)]
        for policy in range(len(self._networks)):
            rows = np.flatnonzero(acting == policy)
            self._counts[policy] = len(rows)
            if len(rows):
                self._act(policy, rows, slot, step, noise)
        return self._counts

    def _act(self, policy: int, rows: Array | slice, slot: int, step: int, noise: Array) -> None:
        slots, network = self._slots, self._networks[policy]
        actions, log_probs, values, _ = network(noise[rows], self._observations[slot, step, rows])
        slots.values[slot, step, rows] = values
        if step <= self._last:
            slots.actions[slot, step, rows] = actions
            slots.log_probs[slot, step, rows] = log_probs
            slots.policy_version[slot, step, rows] = self._versions[policy]


def small_actor(info: EnvInfo, config: Config, weights: Array, versions: Array, slots: Slots) -> SmallActor:
    """The fastest that these networks have here: in C after a comparison with NumPy, or else in NumPy.

    Args:
        info: spaces of the environments.
        config: of the run, with a network that `sf.nets.fast.numpy_network` has written out.
        weights: [policies, size] float32; changes are seen.
        versions: [policies] int64, of the weights; changes are seen.
        slots: whose steps it acts in.
    """
    in_numpy = NumpyActor([SmallNetwork(info, config.model, own) for own in weights], versions, slots)
    if not config.learner.native_update or not has_native_acting(info, config.model):
        return in_numpy
    try:
        in_c = NativeActing(info, config.model, weights, versions, slots)
        differences = [_difference(info, config.model, slots.topology, seed) for seed in range(2)]
    except NoCompilerError:
        return in_numpy  # the learner says so
    if all(differences):  # rounding may decide a tie of two choices, but not twice
        Console().line_once(f"Warning: small networks act in NumPy and not in C, where {differences[0]}.")
        return in_numpy
    return in_c


def _difference(info: EnvInfo, config: ModelConfig, topology: Topology, seed: int) -> str:
    """How two steps in C differ from those in NumPy; empty where rounding explains it."""
    small = replace(
        topology, num_workers=1, groups_per_worker=1, envs_per_group=COMPARED_ENVS, rollout=1, slots_per_group=1
    )
    random, policies = np.random.default_rng(seed), topology.num_policies
    weights = random.random((policies, size_of(info, config)), np.float32)  # none of them negative: some are deviations
    noise, versions = noise_source(info, random)(small.rows), np.arange(policies)
    networks = [SmallNetwork(info, config, own) for own in weights]
    seen = random.standard_normal((2, small.rows, *next(iter(info.observations.values())).shape))

    def acted(actor: Callable[[Slots], SmallActor]) -> list[Array]:
        slots = Slots(small, Arena(slot_memory(small, info)))
        (observations,) = slots.observations.values()
        observations[0] = seen
        slots.policy_id[:] = np.arange(small.rows) % policies
        act = actor(slots)
        for step in range(2):
            act(0, step, noise)
        stored = slots.actions, slots.log_probs, slots.values, slots.policy_version
        return [array.astype(np.float64) for array in stored]

    in_c = acted(lambda slots: NativeActing(info, config, weights, versions, slots))
    in_numpy = acted(lambda slots: NumpyActor(networks, versions, slots))
    (leaf,) = info.observations.values()
    largest = max(float(np.abs(own(noise, seen[0].astype(leaf.dtype))[3]).max()) for own in networks)
    for name, of_c, of_numpy in zip(("actions", "log_probs", "values", "versions"), in_c, in_numpy, strict=True):
        tolerance = 1e-6 + TOLERANCE * max(largest, float(np.abs(of_numpy).max()))
        if not np.allclose(of_c, of_numpy, rtol=1e-5, atol=tolerance):
            return f"{name} differ by up to {float(np.abs(of_c - of_numpy).max()):.2g}"
    return ""
