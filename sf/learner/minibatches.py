"""Which transitions of a dataset train, and in which optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """One minibatch as row numbers of the flattened [T·B] dataset."""

    counted: Tensor
    """[n] rows of the own policy, old ones included."""
    trained: Tensor | None
    """[m] those of them that are young enough to train on; None for the whole dataset in its own order."""
    columns: Tensor | None = None
    """[b] trajectories of a policy with memory, which has to go through all of their steps to train on some."""


class Selection:
    """The rows of a dataset that the learner's own policy chose, and those of them that are young enough to train."""

    def __init__(self, own: Tensor, ages: Tensor, max_age: int) -> None:
        """Looks at a dataset.

        Args:
            own: [T, B] bool, chosen by the policy under training.
            ages: [T, B] int64, versions since the action was chosen.
            max_age: transitions of this age and older do not train.
        """
        self._own = own = own.cpu()
        # Trajectory after trajectory, so that without shuffling a minibatch holds whole trajectories where it can.
        rows = torch.arange(own.numel()).view(own.shape).t()
        self._own_rows = rows[own.t()]
        self._young = (ages.cpu() < max_age).flatten()
        self.num_total, self.num_own = own.numel(), len(self._own_rows)
        self.num_trained = int(self._young[self._own_rows].sum())

    @property
    def trained_rows(self) -> Tensor | None:
        """All rows that train; None for the whole dataset."""
        return None if self.num_trained == self.num_total else self._only_young(self._own_rows)

    def deal(self, num_parts: int, shuffle: bool, whole_trajectories: bool = False) -> list[Part]:
        """Parts of nearly equal size, fewer where there are not enough rows; each row is in one of them.

        With shuffle every call draws a new permutation. A part in which everything is too old is left out. Whole
        trajectories stay together and in the order of time, step after step.
        """
        if whole_trajectories:
            return self._deal_trajectories(num_parts, shuffle)
        if num_parts == 1 and self.num_trained == self.num_total:
            return [Part(self._own_rows, None)]
        rows = self._own_rows[torch.randperm(self.num_own)] if shuffle else self._own_rows
        parts = [(part, self._only_young(part)) for part in rows.tensor_split(num_parts)]
        return [Part(counted, trained) for counted, trained in parts if len(trained)]

    def _deal_trajectories(self, num_parts: int, shuffle: bool) -> list[Part]:
        length, num_trajectories = self._own.shape
        order = torch.randperm(num_trajectories) if shuffle else torch.arange(num_trajectories)
        parts = []
        for columns in order.tensor_split(num_parts):
            rows = (torch.arange(length).unsqueeze(-1) * num_trajectories + columns).flatten()
            counted = rows[self._own.flatten()[rows]]
            parts.append(Part(counted, self._only_young(counted), columns))
        return [part for part in parts if part.trained is not None and len(part.trained)]

    def _only_young(self, rows: Tensor) -> Tensor:
        return rows if self.num_trained == self.num_own else rows[self._young[rows]]
