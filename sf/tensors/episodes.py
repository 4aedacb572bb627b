"""Returns, lengths and metrics of the episodes in a trajectory, worked out on the device once for all of its steps.

Sums from one end of an episode to the next are differences of sums from the beginning of the trajectory. So no step
has to be looked at by the host, and the numbers of all episodes come to it in one transfer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sf.envs.step_metrics import REDUCTIONS
from sf.shared.arena import Array


class _Segments:
    """The parts of a trajectory that belong to one episode each."""

    def __init__(self, over: Tensor) -> None:
        """Takes [T, rows] bool, whether a step ends an episode."""
        self.num_steps = len(over)
        self.steps = torch.arange(1, self.num_steps + 1, device=over.device)[:, None]
        ends = torch.where(over, self.steps, 0).cummax(0).values
        none = torch.zeros_like(ends[:1])
        self.before = torch.cat([none, ends[:-1]])
        """[T, rows] steps until the last end before the step; 0 where the episode began in an earlier trajectory."""
        self.last = ends[-1]
        """[rows] steps until the last end."""

    def sums(self, values: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        """[T, rows] float64 sums from the beginning of the episode, and [rows] those to carry on."""
        sums = torch.cat([torch.zeros_like(values[:1]), values.cumsum(0)])
        within = sums[1:] - sums.gather(0, self.before) + torch.where(self.before == 0, carried, 0.0)
        left = sums[-1] - sums.gather(0, self.last[None])[0] + torch.where(self.last == 0, carried, 0.0)
        return within, left


class TrajectoryEpisodes:
    """Keeps what each row has summed up in the episode that goes on."""

    def __init__(self, rows: int, device: torch.device) -> None:
        """Starts at zero."""
        self._rows, self._device = rows, device
        self._returns, self._lengths = self._zeros(), self._zeros()
        self._carried: dict[str, tuple[Tensor, Tensor]] = {}
        """What each metric of every step is so far, and in how many steps it was there."""

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, between two trajectories or within one."""
        return {"returns": self._returns, "lengths": self._lengths, "carried": self._carried}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken."""
        self._returns.copy_(state["returns"])
        self._lengths.copy_(state["lengths"])
        for name, (number, counts) in state["carried"].items():
            self._carried[name] = number.to(self._device), counts.to(self._device)

    def ended(self, rewards: Tensor, over: Tensor, metrics: Mapping[str, Tensor]) -> tuple[Array, list[str]]:
        """The episodes that ended in a trajectory, in the order of time.

        Args:
            rewards: [T, rows], as the simulator gave them.
            over: [T, rows] bool.
            metrics: [T, rows] per name, see `sf.envs.step_metrics`; nan where a step has none.

        Returns:
            [n, 3 + metrics] on the host: row, return, length, and metrics in the order of the names.
        """
        segments, names = _Segments(over), list(metrics)
        returns, self._returns = segments.sums(rewards.double(), self._returns)
        lengths, self._lengths = segments.sums(torch.ones_like(returns), self._lengths)
        columns = [returns, lengths, *(self._reduced(name, metrics[name].double(), segments) for name in names)]
        steps, rows = over.nonzero(as_tuple=True)
        found = torch.stack([rows.double(), *(column[steps, rows] for column in columns)], 1)
        array: Array = found.cpu().numpy()
        return array, names

    def _reduced(self, name: str, values: Tensor, segments: _Segments) -> Tensor:
        """[T, rows] the number of the episode, as far as it has come."""
        reduction = name.rpartition("/")[2] if "/" in name else ""
        if reduction not in REDUCTIONS:
            return values
        is_there = ~values.isnan()
        carried, counted = self._carried.get(name, (self._zeros(), self._zeros()))
        counts, counts_left = segments.sums(is_there.double(), counted)
        if reduction in ("mean", "sum"):
            numbers, left = segments.sums(values.nan_to_num(nan=0.0), carried)
        else:
            numbers, left = self._one_by_one(reduction, values, is_there, segments, carried, counted)
        self._carried[name] = left, counts_left
        if reduction == "mean":
            return numbers / counts  # nan where no step had one
        return numbers.masked_fill(counts == 0, torch.nan)

    @staticmethod
    def _one_by_one(
        reduction: str, values: Tensor, is_there: Tensor, segments: _Segments, carried: Tensor, counted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The largest or the last number so far, step by step."""
        now, found = carried.masked_fill(counted == 0, -torch.inf), []
        for t in range(segments.num_steps):
            if t > 0:
                now = now.masked_fill(segments.before[t] == t, -torch.inf)
            fresh = values[t] if reduction == "last" else torch.maximum(now, values[t])
            now = torch.where(is_there[t], fresh, now)
            found.append(now)
        return torch.stack(found), now

    def _zeros(self) -> Tensor:
        return torch.zeros(self._rows, dtype=torch.float64, device=self._device)
