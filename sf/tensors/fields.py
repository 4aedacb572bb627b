"""Trajectories on a device: the fields of the table of `sf.shared.slot_fields` that need not be on the host."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sf.shared.fields import StoredField
from sf.shared.topology import Topology


class TensorFields:
    """Room for the fields of all slots, which the roles of one process share."""

    def __init__(self, topology: Topology, stored: Mapping[str, StoredField]) -> None:
        """Allocates nothing before a device is known.

        Args:
            topology: sizes of the trajectories.
            stored: the table.
        """
        self._topology = topology
        self._stored = {name: field for name, field in stored.items() if field.is_on_device}
        self._rooms: dict[torch.device, dict[str, Tensor]] = {}

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """[slots, ...] per field, with content that shows where it was not written; the same at each call."""
        if device not in self._rooms:
            self._rooms[device] = {name: self._room(field, device) for name, field in self._stored.items()}
        return self._rooms[device]

    def _room(self, field: StoredField, device: torch.device) -> Tensor:
        topology = self._topology
        array = field.in_memory(topology.num_slots, topology.rollout, topology.rows)
        return torch.full(array.shape, array.fill, dtype=getattr(torch, field.dtype), device=device)


def shapes_of(rooms: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """By name, to compare."""
    return {name: (room.shape, room.dtype) for name, room in rooms.items()}
