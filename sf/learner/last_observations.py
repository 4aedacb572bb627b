"""Observations after steps that a time limit cut, for a ring of trajectories.

There is one for a few steps in a thousand, so they lie apart and not beside every step. They leave the ring in the
order in which they came, so a second ring holds them, which grows where it has to.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

LEAST_ROOM = 64


class LastObservations:
    """Those of the places of a ring, by leaf."""

    def __init__(self, num_places: int) -> None:
        """Knows none."""
        self._numbers = torch.full((num_places,), -1, dtype=torch.int64)
        """Number of the one of each place, counted from the first that came; -1 where there is none."""
        self._rooms: dict[str, Tensor] = {}
        self._oldest = self._next = self._room = 0

    def take_in(self, places: Tensor, is_known: Tensor, leaves: Mapping[str, Tensor]) -> None:
        """New trajectories in the place of the oldest ones.

        Args:
            places: [n] of their steps, in the order of the ring.
            is_known: [n] bool, whether there is one after a step.
            leaves: [n, ...] observations, anything where they are not known.
        """
        self._oldest += int((self._numbers[places] >= 0).sum())
        self._numbers[places] = -1
        number = int(is_known.sum())
        if not number:
            return
        self._make_room(number, leaves)
        numbers = self._next + torch.arange(number)
        self._numbers[places[is_known]] = numbers
        for name, leaf in leaves.items():
            self._rooms[name][numbers % self._room] = leaf[is_known]
        self._next += number

    def put(self, places: Tensor, observations: Mapping[str, Tensor]) -> None:
        """Writes those of the steps at places [N] over observations [N, ...] that belong to the next episode."""
        if self._next == self._oldest:
            return
        numbers = self._numbers[places]
        rows = (numbers >= 0).nonzero()[:, 0]
        if len(rows):
            found = numbers[rows] % self._room
            for name, leaf in observations.items():
                leaf[rows] = self._rooms[name][found]

    def _make_room(self, number: int, leaves: Mapping[str, Tensor]) -> None:
        needed = self._next + number - self._oldest
        if needed <= self._room:
            return
        there, before = torch.arange(self._oldest, self._next), self._room
        self._room = max(LEAST_ROOM, 2 * needed)
        for name, leaf in leaves.items():
            room = torch.zeros(self._room, *leaf.shape[1:], dtype=leaf.dtype)
            if len(there):
                room[there % self._room] = self._rooms[name][there % before]
            self._rooms[name] = room
