"""The actors that an inference worker computes with, and the one that needs no torch.

The other one is in `sf.inference.network_actor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from sf.config import ModelConfig
from sf.config.written_out import size_of
from sf.nets.fast.numpy_network import SmallNetwork, noise_source
from sf.shared.arena import Array
from sf.shared.records import Record
from sf.shared.weights import PublishedWeights
from sf.spaces import EnvInfo

NO_MEMORY = np.empty((0, 0), np.float32)
ACTING = 0x61637473
"""The last word of the entropy: no stream of an environment is like one of actions."""


class Answers(NamedTuple):
    """Arrays of the host for B rows."""

    actions: Array
    """[B] or [B, D]."""
    log_probs: Array
    """[B]."""
    values: Array
    """[B]."""
    memory: Array
    """[B, S], or `NO_MEMORY`."""


class ActingCopy(Protocol):
    """A copy of the policy."""

    def expect_weights(self, weights: PublishedWeights) -> None:
        """Prepares for reading what is published there."""

    def take_weights(self, weights: Array) -> None:
        """Acts with these from now on, [size] float32 on the host; copies them."""

    def act(self, observations: Mapping[str, Sequence[Array]], memory: Sequence[Array], stream: int | None) -> Answers:
        """Chooses an action for each row of several groups, in one forward pass.

        Args:
            observations: the rows of each group, by leaf.
            memory: the rows of each group; nothing without a recurrent state.
            stream: a number whose random numbers are its own; None for those of the whole actor.
        """

    def note_memory(self, record: Record) -> None:
        """Writes down what is taken on an accelerator."""

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs beside the weights, in plain JSON types."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""


class SmallActor:
    """Acts in NumPy alone, in processes that do without torch."""

    def __init__(self, info: EnvInfo, config: ModelConfig, entropy: Sequence[int]) -> None:
        """Acts with zeros until weights come.

        Args:
            info: spaces of the environments.
            config: of a network that `sf.nets.fast.numpy_network` has written out.
            entropy: of the random numbers.
        """
        self._weights = np.zeros(size_of(info, config), np.float32)
        self._network = SmallNetwork(info, config, self._weights)
        self._info, self._entropy = info, list(entropy)
        self.random = self._random(None)
        self._noise = noise_source(info, self.random)
        self._noise_of_streams: dict[int, Callable[[int], Array]] = {}

    def expect_weights(self, weights: PublishedWeights) -> None:
        """Nothing to prepare."""

    def take_weights(self, weights: Array) -> None:
        """See `ActingCopy`."""
        self._weights[:] = weights

    def act(self, observations: Mapping[str, Sequence[Array]], memory: Sequence[Array], stream: int | None) -> Answers:
        """See `ActingCopy`."""
        (parts,) = observations.values()
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        noise = self._noise if stream is None else self._noise_of(stream)
        actions, log_probs, values, _ = self._network(noise(len(rows)), rows)
        return Answers(actions, log_probs, values, NO_MEMORY)

    def note_memory(self, record: Record) -> None:
        """Nothing is taken on an accelerator."""

    def state(self) -> dict[str, Any]:
        """See `ActingCopy`; streams of their own are for runs of several processes, which go on with other numbers."""
        return {"random": self.random.bit_generator.state}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `ActingCopy`."""
        self.random.bit_generator.state = state["random"]

    def _noise_of(self, stream: int) -> Callable[[int], Array]:
        if stream not in self._noise_of_streams:
            self._noise_of_streams[stream] = noise_source(self._info, self._random(stream))
        return self._noise_of_streams[stream]

    def _random(self, stream: int | None) -> np.random.Generator:
        return np.random.default_rng([*self._entropy, 0 if stream is None else stream + 1, ACTING])
