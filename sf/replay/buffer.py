"""A storage, where the next row goes, and a sampler."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from sf.replay.storage import Rows, Storage, leaves, mapped


class Sampler(Protocol):
    """Chooses rows; see `sf.replay.sampler.StalenessAwareSampler`."""

    generator: torch.Generator | None

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Indices [batch_size], and facts about each of them."""

    def extend(self, index: Tensor) -> None:
        """Told of rows that were added."""

    def empty(self) -> None:
        """Told that all rows are gone."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed loop needs."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of `state_dict`."""


class ReplayBuffer:
    """Keeps the newest rows and draws batches of them."""

    def __init__(
        self,
        storage: Storage,
        sampler: Sampler,
        batch_size: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Starts with what the storage holds.

        Args:
            storage: of the rows.
            sampler: that chooses them.
            batch_size: rows that `sample` draws if it is not told another number.
            generator: of the draws; None for the one of torch.
        """
        self.storage, self.sampler, self.batch_size = storage, sampler, batch_size
        self._next = len(storage) % storage.max_size
        sampler.generator = generator

    def __len__(self) -> int:
        return len(self.storage)

    def extend(self, rows: Rows) -> Tensor:
        """Adds rows, which take the place of the oldest ones once the storage is full.

        Args:
            rows: nested mapping of tensors [n, ...]; of more than fit the newest remain.

        Returns:
            Their indices [n]; where rows did not remain, a later row has the same index.

        Raises:
            ValueError: the tensors have different numbers of rows, or do not fit to those that are there.
        """
        sizes = {len(tensor) for tensor in leaves(rows)}
        if len(sizes) != 1:
            raise ValueError(f"All columns need the same number of rows, but they have {sorted(sizes)}.")
        (num_rows,) = sizes
        room = self.storage.max_size
        index = (self._next + torch.arange(num_rows)) % room
        for start in range(0, num_rows, room):
            part = slice(start, min(start + room, num_rows))
            self.storage.write(self._next, mapped(operator.itemgetter(part), rows), part.stop - start)
            self._next = (self._next + part.stop - start) % room
        self.sampler.extend(index[-room:])
        return index

    def add(self, row: Rows) -> int:
        """Adds one row, whose tensors have no leading axis; returns its index."""
        return int(self.extend(mapped(lambda value: value.unsqueeze(0), row))[0])

    def sample(self, batch_size: int | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Draws rows.

        Returns:
            The rows, tensors [batch_size, ...] nested as they were added, and facts about them: ``index``, and facts of
            the sampler, such as ``staleness``.

        Raises:
            ValueError: no batch size is known.
            NothingToDraw: there are no rows that may be drawn.
        """
        batch_size = self.batch_size if batch_size is None else batch_size
        if batch_size is None:
            raise ValueError("Give a batch size, to sample() or to the constructor of the buffer.")
        index, facts = self.sampler.sample(self.storage, batch_size)
        return self.storage.read(index), {"index": index, **facts}

    def state_dict(self) -> dict[str, Any]:
        """The rows, where the next one goes, and the state of the sampler and of the draws; copied."""
        state = {"storage": self.storage.state_dict(), "sampler": self.sampler.state_dict(), "next": self._next}
        generator = self.sampler.generator
        return state if generator is None else state | {"generator": generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of `state_dict`.

        Raises:
            ValueError: its rows do not fit into the storage.
        """
        self.storage.load_state_dict(state["storage"])
        self.sampler.load_state_dict(state["sampler"])
        self._next = int(state["next"])
        if self.sampler.generator is not None and "generator" in state:
            self.sampler.generator.set_state(state["generator"])

    def empty(self) -> None:
        """Forgets all rows."""
        self.storage.clear()
        self._next = 0
        self.sampler.empty()
