"""What an inference worker computes with; `sf.inference.network_actor` has it with torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from sf.shared.arena import Array
from sf.shared.records import Record
from sf.shared.weights import PublishedWeights

NO_MEMORY = np.empty((0, 0), np.float32)


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
    heads: Mapping[str, Array] = {}
    """[B, ...] of each field that the network computes beside these, by name."""


class ActingCopy(Protocol):
    """A copy of the policy."""

    def expect_weights(self, weights: PublishedWeights) -> None:
        """Prepares for reading what is published there."""

    def take_weights(self, weights: Array) -> None:
        """Acts with these from now on, [size] float32 on the host; copies them."""

    def act(
        self,
        observations: Mapping[str, Sequence[Array]],
        memory: Sequence[Array],
        stream: int | None,
        noise: Array | None = None,
    ) -> Answers:
        """Chooses an action for each row of several groups, in one forward pass.

        Args:
            observations: the rows of each group, by leaf.
            memory: the rows of each group; nothing without a recurrent state.
            stream: a number whose random numbers are its own; None for those of the whole actor.
            noise: [B, n] random numbers in place of those of the actor.
        """

    def note_memory(self, record: Record) -> None:
        """Writes down what is taken on an accelerator."""

    def state(self) -> dict[str, Any]:
        """The state that a resumed run needs beside the weights, in plain JSON types."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""
