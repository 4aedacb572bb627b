"""Draws rows by freshness, after TorchRL's `StalenessAwareSampler`.

The staleness of a row is the version of the policy that is about to train minus the version that chose its action, in
optimizer steps: the same number as its policy lag.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sf.replay.storage import Key, Storage

WeightFunction = Callable[[Tensor], Tensor]
"""From the staleness [n] int64 of rows, none of them negative, to a weight [n] each."""
STATE_FILE = "sampler.json"
MOST_ROUNDS = 4
"""Most rounds of draws with replacement, before the rest of a batch is drawn in another way."""


def inverse(staleness: Tensor) -> Tensor:
    """1 / (s + 1), the default."""
    return staleness.to(torch.float32).add_(1.0).reciprocal_()


class NothingToDraw(RuntimeError):
    """There are no rows, or all of them are too old."""


class StalenessAwareSampler:
    """Draws fresh rows more often, and none that is too old.

    Nothing is kept between two draws: raising `consumer_version` changes the next one.
    """

    def __init__(
        self,
        max_staleness: int = -1,
        staleness_weight_fn: WeightFunction | None = None,
        version_key: Key = "policy_version",
    ) -> None:
        """Starts at consumer version 0.

        Args:
            max_staleness: rows that are older are not drawn, those that are as old are; negative for no limit.
            staleness_weight_fn: how likely a row is drawn, up to a factor; None for 1 / (s + 1).
            version_key: column with the version that chose the action; a tuple for a nested one.
        """
        self.max_staleness = max_staleness
        self.consumer_version = 0
        self.version_key = version_key
        self.generator: torch.Generator | None = None
        """Generator of the draws; a buffer sets it."""
        self._weight_fn = staleness_weight_fn or inverse
        self._has_warned = False
        self._room = torch.empty(0, dtype=torch.int64)
        """Scratch memory: fresh memory for a million entries takes longer than the arithmetic."""

    @property
    def max_staleness(self) -> int:
        """Largest staleness that is drawn; negative for no limit. A change takes effect in the next draw."""
        return self._max_staleness

    @max_staleness.setter
    def max_staleness(self, limit: int) -> None:
        self._max_staleness = int(limit)

    @property
    def consumer_version(self) -> int:
        """Version of the policy that is about to train; the training loop sets it after each optimizer step."""
        return self._consumer_version

    @consumer_version.setter
    def consumer_version(self, version: int) -> None:
        self._consumer_version = int(version)

    def increment_consumer_version(self) -> None:
        """Adds 1 to `consumer_version`."""
        self._consumer_version += 1

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Draws rows: without replacement where there are enough, else with replacement.

        Returns:
            Indices [batch_size] int64, and their ``staleness`` in the same order.

        Raises:
            KeyError: the rows have no version.
            NothingToDraw: there are no rows, or all of them are too old.
            ValueError: the batch is empty, an entry has not one version, or the weight function gives weights with
                which nothing can be drawn.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} draws nothing. Use 1 or more.")
        versions, rows = self._versions(storage), None
        if self.max_staleness >= 0:
            rows = (versions >= self.consumer_version - self.max_staleness).nonzero()[:, 0]
            if len(rows) == 0:
                raise NothingToDraw(
                    f"All {len(versions)} entries are older than max_staleness={self.max_staleness} at consumer "
                    f"version {self.consumer_version}; the freshest has staleness "
                    f"{self.consumer_version - int(versions.max())}. Collect newer data, or raise max_staleness."
                )
            versions = versions[rows]
        staleness = self._staleness(versions)
        index = draw(self._weights(staleness), batch_size, self.generator)
        return index if rows is None else rows[index], {"staleness": staleness[index]}

    def _versions(self, storage: Storage) -> Tensor:
        """[n] int64 of all entries."""
        if len(storage) == 0:
            raise NothingToDraw("The storage is empty. Extend the buffer before you sample from it.")
        try:
            versions = storage.column(self.version_key)
        except KeyError:
            raise KeyError(
                f"The rows have no column {self.version_key!r}. Add the version of the policy that chose each action, "
                "for example with PolicyVersion.stamp(rows), or give the sampler its name as version_key."
            ) from None
        if versions.shape[getattr(storage, "batch_dims", 1) :].numel() != 1:
            raise ValueError(
                f"The column {self.version_key!r} has shape {list(versions.shape)}, more than one version for each "
                "entry. Store one, or count entries by two axes with TensorStorage(..., batch_dims=2)."
            )
        return versions.reshape(-1).to(torch.int64)

    def _staleness(self, versions: Tensor) -> Tensor:
        """[n] int64, in scratch memory that the next draw overwrites."""
        if len(self._room) < len(versions) or self._room.device != versions.device:
            self._room = torch.empty_like(versions)
        newest = torch.tensor(self.consumer_version, device=versions.device)
        staleness = torch.sub(newest, versions, out=self._room[: len(versions)])
        if staleness.min() < 0:
            self._warn_of_the_future(staleness)
            staleness.clamp_(min=0)
        return staleness

    def _warn_of_the_future(self, staleness: Tensor) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{int((staleness < 0).sum())} entries have versions above the consumer version "
                f"{self.consumer_version}, which count as staleness 0. Set consumer_version after each optimizer step.",
                stacklevel=4,
            )

    def _weights(self, staleness: Tensor) -> Tensor:
        weights = torch.as_tensor(self._weight_fn(staleness))
        if weights.shape != staleness.shape:
            raise ValueError(
                f"staleness_weight_fn returned weights of shape {list(weights.shape)} for {len(staleness)} entries. "
                "Return one weight for each."
            )
        low, high = (extreme.item() for extreme in weights.aminmax())  # nan where one of them is nan
        if not (low >= 0.0 and 0.0 < high < math.inf):
            raise ValueError(
                f"staleness_weight_fn returned weights from {low} to {high}. Weights must be finite, not negative, and "
                "not zero everywhere."
            )
        return weights

    def state_dict(self) -> dict[str, int]:
        """The state that a resumed loop needs; the weight function is not part of it."""
        return {"consumer_version": self.consumer_version, "max_staleness": self.max_staleness}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of `state_dict`."""
        self.consumer_version, self.max_staleness = state["consumer_version"], state["max_staleness"]

    def dumps(self, path: Path | str) -> None:
        """Writes the state into a directory, which is made if it is missing."""
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / STATE_FILE).write_text(json.dumps(self.state_dict()))

    def loads(self, path: Path | str) -> None:
        """Reads what `dumps` has written."""
        self.load_state_dict(json.loads((Path(path) / STATE_FILE).read_text()))

    def add(self, index: int) -> None:
        """Hook for a row that was added; does nothing."""

    def extend(self, index: Tensor) -> None:
        """Hook for rows that were added; does nothing."""

    def update_priority(self, index: Tensor, priority: Tensor) -> None:
        """Only warns: rows have no priority beside their age."""
        warnings.warn("StalenessAwareSampler has no priorities; update_priority does nothing.", stacklevel=2)

    def empty(self) -> None:
        """Hook for a buffer that was emptied."""
        self.consumer_version = 0


def draw(weights: Tensor, num: int, generator: torch.Generator | None = None) -> Tensor:
    """Indices [num], one draw after the other in proportion to the weights.

    Without replacement where `num` weights are above 0, else with replacement. Successive draws without replacement are
    draws with replacement whose repeats are passed over. That takes one sum over the weights and no random number per
    row.

    Args:
        weights: [n], finite and not negative, some above 0.
        num: draws.
        generator: of the random numbers.
    """
    sums = weights.cumsum(0, dtype=torch.float64)
    if num > len(weights) or num > int(weights.count_nonzero()):
        return _with_replacement(sums, num, generator)
    drawn = torch.empty(0, dtype=torch.int64, device=weights.device)
    if 2 * num <= len(weights):
        for _ in range(MOST_ROUNDS):
            drawn = _first_of_each(torch.cat([drawn, _with_replacement(sums, num, generator)]))
            if len(drawn) >= num:
                return drawn[:num]
    # Many repeats, because few rows carry most of the weight. So the rows that are left run an exponential race, whose
    # order of arrival has the same distribution.
    rest = weights.to(torch.float64).index_fill(0, drawn, 0.0)
    arrivals = torch.empty_like(rest).exponential_(generator=generator).div_(rest)
    return torch.cat([drawn, arrivals.topk(num - len(drawn), largest=False, sorted=True).indices])


def _with_replacement(sums: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
    points = torch.rand(num, dtype=torch.float64, device=sums.device, generator=generator) * sums[-1]
    # A point is the weight that lies before it, so that a row of weight 0 is never met. Rounding can reach the sum.
    return torch.searchsorted(sums, points, right=True).clamp_(max=int(torch.searchsorted(sums, sums[-1])))


def _first_of_each(index: Tensor) -> Tensor:
    """The indices in the order of their first occurrence."""
    ordered, positions = index.sort(stable=True)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return index[positions[is_first].sort().values]
