"""The newest trajectories of batches, on the host; the oldest ones make room.

A trajectory of T steps has T + 1 observations, so the observation after a step is there and is not stored twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from sf.errors import ResourceError
from sf.learner.batch import Batch
from sf.machine.memory import available_memory

OTHER_BYTES = 32
"""For a transition, beside its observation; a guess, before memory is taken."""


class StoredTrajectories:
    """Columns of trajectories that all have as many steps."""

    def __init__(self, size: int) -> None:
        """Takes memory with the first batch.

        Args:
            size: transitions that it holds, rounded down to whole trajectories.
        """
        self._size = size
        self.observations: dict[str, Tensor] = {}
        """[room, T + 1, *shape] per leaf."""
        self.columns: dict[str, Tensor] = {}
        """[room, T, ...] or [room, ...] per name."""
        self.num_steps = 0
        """T."""
        self.room = 0
        """Trajectories that it holds at most."""
        self.filled = 0
        """Trajectories that it holds."""
        self._next = 0

    def make_room(self, batch: Batch, by_step: Mapping[str, Tensor], by_trajectory: Mapping[str, Tensor]) -> None:
        """Columns of the shapes and types of this batch.

        Args:
            batch: the first one.
            by_step: [T, B, ...] per name, what else is stored of it.
            by_trajectory: [B, ...] per name, the same.

        Raises:
            ResourceError: they do not fit into memory.
        """
        self.num_steps = len(batch.rewards)
        self.room = max(1, self._size // self.num_steps)
        row = sum(leaf[0, 0].numel() * leaf.element_size() for leaf in batch.observations.values())
        row_of_others = sum(column[:1].nbytes for column in by_trajectory.values())
        needed = self.room * ((self.num_steps + 1) * row + self.num_steps * OTHER_BYTES + row_of_others)
        available, owner = available_memory()
        if needed > available:
            raise ResourceError(
                f"The replay buffer of {self._size} transitions takes {needed / 2**30:.3g} GiB, but the {owner} has "
                f"{available / 2**30:.3g} GiB left. Use a smaller --replay_size."
            )

        def room(column: Tensor, *steps: int) -> Tensor:
            return torch.zeros(self.room, *steps, *column.shape[1 + len(steps) :], dtype=column.dtype)

        self.observations = {name: room(leaf, self.num_steps + 1) for name, leaf in batch.observations.items()}
        self.columns = {name: room(column, self.num_steps) for name, column in by_step.items()}
        self.columns |= {name: room(column) for name, column in by_trajectory.items()}

    def put(
        self, batch: Batch, by_step: Mapping[str, Tensor], by_trajectory: Mapping[str, Tensor]
    ) -> Iterator[tuple[slice, Tensor]]:
        """Takes in the trajectories of a batch, as many at once as there is room for; arguments as for `make_room`.

        Yields:
            Which of them, and the rows [n] that they have.
        """
        if not self.columns:
            self.make_room(batch, by_step, by_trajectory)
        number = batch.rewards.shape[1]
        for start in range(0, number, self.room):
            part = slice(start, min(start + self.room, number))
            rows = (self._next + torch.arange(part.stop - part.start)) % self.room
            self._next = (self._next + len(rows)) % self.room
            self.filled = min(self.room, self.filled + len(rows))
            for name, leaf in batch.observations.items():
                self.observations[name][rows] = leaf[:, part].transpose(0, 1).cpu()
            for name, column in by_step.items():
                self.columns[name][rows] = column[:, part].transpose(0, 1).cpu()
            for name, column in by_trajectory.items():
                self.columns[name][rows] = column[part].cpu()
            yield part, rows
