"""Numbers of its own that a simulator reports, kept on the device for one trajectory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sf.console import Console
from sf.envs.metrics import EpisodeMetrics


class TrajectoryMetrics:
    """Room for [T, rows] numbers per name."""

    def __init__(self, steps: int, rows: int, device: torch.device) -> None:
        """Has no names yet."""
        self._shape, self._device = (steps, rows), device
        self._rooms: dict[str, Tensor] = {}
        self._names = EpisodeMetrics(Console())
        self._refused: set[str] = set()

    def state(self) -> dict[str, Tensor]:
        """The numbers of the present trajectory, [T, rows] per name."""
        return dict(self._rooms)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state` was taken."""
        for name, room in state.items():
            self._names.read({"metrics": {name: 0.0}})
            self._rooms[name] = room.to(self._device)

    def add(self, t: int, metrics: Mapping[str, Tensor]) -> None:
        """Takes in the numbers [rows] of a step; names that cannot be shown are told and left out."""
        for name, values in metrics.items():
            if name not in self._rooms:
                if name in self._refused:
                    continue
                if not self._names.read({"metrics": {name: 0.0}}):
                    self._refused.add(name)
                    continue
                self._rooms[name] = torch.full(self._shape, torch.nan, dtype=torch.float64, device=self._device)
            self._rooms[name][t].copy_(values, non_blocking=True)

    def take(self) -> Mapping[str, Tensor]:
        """The numbers of the trajectory, nan where a step had none or one that is not finite; forgets them."""
        taken = {name: room.clone() for name, room in self._rooms.items()}
        if not taken:
            return taken
        infinite = torch.stack([values.isinf().any() for values in taken.values()]).cpu().tolist()
        for (name, values), has_infinite in zip(taken.items(), infinite, strict=True):
            self._rooms[name].fill_(torch.nan)
            if has_infinite:
                self._names.read({"metrics": {name: torch.inf}})  # which says so, once
                values.masked_fill_(values.isinf(), torch.nan)
        return taken
