"""Which transitions of a dataset train, and in which optimizer step.

The host decides it. The row indices go to the device once per epoch, so no optimizer step waits for its rows. Where all
transitions of a large dataset are alike, as in synchronous runs, a device shuffles by itself: for 500,000 rows the host
takes 60 ms. It begins with a number that the host draws, so a run that goes on shuffles as it would have.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.peers import ALONE, Peers
from sf.nets.device import CPU
from sf.shared.arena import Array

log = logging.getLogger(__name__)


class Ages(NamedTuple):
    """Ages of the transitions of a minibatch, those of all learners, when its dataset began."""

    min: float
    mean: float
    max: float


NO_AGES = Ages(-1.0, -1.0, -1.0)
DEALT_THERE_FROM = 2**15
"""Transitions of a dataset that a device deals by itself."""


def ages_of_all(own: Array, peers: Peers = ALONE) -> Ages:
    """Least, mean and largest age over the shares of all learners, of which one [n] may be empty."""
    facts = [own.min(), own.sum(), own.max(), own.size] if own.size else [np.inf, 0.0, -np.inf, 0.0]
    shares = np.stack([share.numpy() for (share,) in peers.gather(torch.tensor(facts, dtype=torch.float64))])
    number = shares[:, 3].sum()
    if not number:
        return NO_AGES
    return Ages(float(shares[:, 0].min()), float(shares[:, 1].sum() / number), float(shares[:, 2].max()))


@dataclass(frozen=True)
class MinibatchRows:
    """One minibatch, or this learner's share of it, as row numbers of the flattened [T·B] dataset."""

    counted: Tensor
    """[n] rows of the own policy, old ones included; on the host, or where a device has dealt them."""
    trained: Tensor | None
    """[m] those of them that are young enough to train on; None for the whole dataset in its own order."""
    columns: Tensor | None = None
    """[b] trajectories of a recurrent policy, which has to go through all of their steps to train on some."""
    kept: Tensor | None = None
    """[m] where `trained` is among the steps of `columns` in the order of time; None if it is all of them."""
    ages: Ages = NO_AGES
    """Ages of the counted transitions."""
    each_age: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """[m] of each transition that trains, in their order; of this learner's share alone."""

    @property
    def num_trained(self) -> int:
        """Transitions of this learner's share that train; 0 if only others have some."""
        return len(self.counted if self.trained is None else self.trained)


class Selection:
    """The rows of a dataset that the learner's own policy chose, and those of them that are young enough to train."""

    def __init__(
        self,
        own: Tensor,
        ages: Tensor,
        max_age: int,
        peers: Peers = ALONE,
        device: torch.device = CPU,
        oldest: int | None = None,
    ) -> None:
        """Looks at a dataset.

        Args:
            own: [T, B] bool on the host, chosen by the policy under training.
            ages: [T, B] int64 on the host, versions since the action was chosen.
            max_age: transitions of this age and older do not train.
            peers: the other learners, each of which looks at its share of the dataset.
            device: of the dataset.
            oldest: transitions that are older than this are in no minibatch; None for no limit.
        """
        self._peers, self._device = peers, device
        num_own = int(own.sum())
        own = own if oldest is None else own & (ages <= oldest)
        self._own = own
        self._ages: Array = ages.numpy().ravel()
        young = ages < max_age
        self.trains = own & young
        """[T, B] bool on the host."""
        self._young = young.flatten()
        self._num_total, acting = own.numel(), 0.0
        is_large = self._num_total >= DEALT_THERE_FROM
        self._only_age = _only_age(self.trains, ages) if is_large and device != CPU and peers is ALONE else None
        """Age of all transitions, where all of them train and have the same one, and a device can deal them."""
        if self._only_age is None:
            self._own_rows = _in_order(own.shape)[own.t().flatten()]
            self._num_counted = len(self._own_rows)
            self._num_trained = int(self._young[self._own_rows].sum())
            acting = float(_ages_at_the_end(own, ages).sum())
        else:
            self._num_counted = self._num_trained = self._num_total
        counted = self._num_total, num_own, num_own - self._num_counted, self._num_trained
        *counted_by_all, acting = peers.sum(*counted, acting)
        self.num_total, self.num_own, self.num_left_out, self.num_trained = map(int, counted_by_all)
        """Transitions of all learners; those that are left out for `oldest` are own ones too."""
        self.lag_while_acting = acting / max(1, self.num_own - self.num_left_out)
        """Mean over those that are not left out: versions from a step to the last one of its trajectory."""

    @property
    def trained_rows(self) -> Tensor | None:
        """All rows that train; None for the whole dataset."""
        return None if self._num_trained == self._num_total else self._only_young(self._own_rows).to(self._device)

    def deal(self, num_parts: int, shuffle: bool, whole_trajectories: bool = False) -> list[MinibatchRows]:
        """Parts of nearly equal size, fewer where there are not enough rows; each row is in one of them.

        With shuffle every call draws a new permutation. A part in which everything is too old, for all learners, is
        left out. Whole trajectories stay together and in the order of time, step after step.
        """
        if self._only_age is not None and not whole_trajectories:
            return self._dealt_there(num_parts, shuffle, self._only_age)
        deal = self._deal_trajectories if whole_trajectories else self._deal_rows
        parts = self._without_empty(deal(num_parts, shuffle))
        return parts if self._device == CPU else _moved(parts, self._device)

    def _dealt_there(self, num_parts: int, shuffle: bool, age: int) -> list[MinibatchRows]:
        """All rows, drawn on the device."""

        def part(rows: Tensor, trained: Tensor | None) -> MinibatchRows:
            ages = Ages(float(age), float(age), float(age))
            return MinibatchRows(rows, trained, ages=ages, each_age=np.broadcast_to(np.int64(age), len(rows)))

        device, total = self._device, self._num_total
        if num_parts == 1:
            return [part(torch.arange(total, device=device), None)]
        rows = _in_order(self._own.shape, device)
        if shuffle:
            generator = torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
            rows = rows[torch.randperm(total, device=device, generator=generator)]
        return [part(own, own) for own in rows.tensor_split(num_parts) if len(own)]

    def _deal_rows(self, num_parts: int, shuffle: bool) -> list[MinibatchRows]:
        if num_parts == 1 and self._num_trained == self._num_total:
            return [MinibatchRows(self._own_rows, None)]
        rows = self._own_rows[torch.randperm(self._num_counted)] if shuffle else self._own_rows
        return [MinibatchRows(counted, self._only_young(counted)) for counted in rows.tensor_split(num_parts)]

    def _deal_trajectories(self, num_parts: int, shuffle: bool) -> list[MinibatchRows]:
        length, num_trajectories = self._own.shape
        order = torch.randperm(num_trajectories) if shuffle else torch.arange(num_trajectories)
        parts = []
        for columns in order.tensor_split(num_parts):
            rows = (torch.arange(length).unsqueeze(-1) * num_trajectories + columns).flatten()
            is_own = self._own.flatten()[rows]
            counted = rows[is_own]
            trained, kept = self._only_young(counted), None
            if len(trained) < len(rows):
                kept = (is_own & self._young[rows]).nonzero()[:, 0]
            parts.append(MinibatchRows(counted, trained, columns, kept))
        return parts

    def _without_empty(self, parts: list[MinibatchRows]) -> list[MinibatchRows]:
        """The parts in which some learner has something to train on, with the ages in the shares of all."""
        own = torch.from_numpy(np.array([self._facts(part) for part in parts], np.float64))
        shares = np.stack([share.numpy() for (share,) in self._peers.gather(own)])
        trained, counted, total = shares[..., :3].sum(0).T.tolist()
        youngest, oldest = shares[..., 3].min(0).tolist(), shares[..., 4].max(0).tolist()
        return [
            replace(part, ages=Ages(youngest[i], total[i] / counted[i], oldest[i]), each_age=self._each_age(part))
            for i, part in enumerate(parts)
            if trained[i]
        ]

    def _facts(self, part: MinibatchRows) -> tuple[float, ...]:
        """How many transitions train and how many count; sum, minimum and maximum of the ages of the latter."""
        ages = self._ages[part.counted.numpy()]
        if not ages.size:
            return 0.0, 0.0, 0.0, np.inf, -np.inf
        return part.num_trained, ages.size, ages.sum(), ages.min(), ages.max()

    def _each_age(self, part: MinibatchRows) -> Array:
        return self._ages if part.trained is None else self._ages[part.trained.numpy()]

    def _only_young(self, rows: Tensor) -> Tensor:
        return rows if self._num_trained == self._num_counted else rows[self._young[rows]]


def _in_order(shape: torch.Size, device: torch.device = CPU) -> Tensor:
    """Rows of [T, B], trajectory after trajectory, so that parts hold whole trajectories where they can."""
    return torch.arange(shape.numel(), device=device).view(shape).t().flatten()


def _only_age(trains: Tensor, ages: Tensor) -> int | None:
    """The age of all of [T, B], where all train and have the same one."""
    if not trains.numel() or not bool(trains.all()):
        return None
    least, most = (int(age) for age in torch.aminmax(ages))
    return least if least == most else None


def older(each_age: Array, steps: int) -> Array:
    """Ages so many steps later; of one age for all it stays one number in memory."""
    if each_age.size and each_age.strides == (0,):
        later: Array = np.broadcast_to(each_age[0] + steps, each_age.shape)
        return later
    return each_age + steps


def _ages_at_the_end(own: Tensor, ages: Tensor) -> Array:
    """[n] of the own transitions: how much older they are than the last own one of their trajectory."""
    where, each = own.numpy(), ages.numpy()
    last = np.where(where, each, np.iinfo(np.int64).max).min(0, initial=np.iinfo(np.int64).max)
    older: Array = (each - last)[where]
    return older


def _moved(parts: list[MinibatchRows], device: torch.device) -> list[MinibatchRows]:
    """The same with what training needs on a device, in one transfer."""
    here = [rows for part in parts for rows in (part.trained, part.columns, part.kept) if rows is not None]
    if not here:
        return parts
    there = iter(torch.split(torch.cat(here).to(device), [len(rows) for rows in here]))

    def moved(rows: Tensor | None) -> Tensor | None:
        return None if rows is None else next(there)

    return [
        replace(part, trained=moved(part.trained), columns=moved(part.columns), kept=moved(part.kept)) for part in parts
    ]


def log_skipped(selection: Selection, labels: Tensor, config: LearnerConfig, version: int, void_before: int) -> None:
    """Says why nothing of a dataset trains, unless that is as it should be.

    Args:
        selection: of the dataset.
        labels: [T, B] versions that acted.
        config: of the learner.
        version: of its policy.
        void_before: transitions of versions before this one are of another policy.
    """
    if selection.num_total == 0:
        return  # other policies have played all of these trajectories
    if void_before and selection.num_own == selection.num_left_out:
        return  # as it should be for a while after a takeover
    if selection.num_own == selection.num_left_out:
        why = "other policies chose all of them, or they led to numbers that are not finite (--on_nonfinite=drop)"
        if selection.num_left_out:
            why = f"all of them are too old for bound_policy_lag={config.bound_policy_lag}"
        log.warning("Skipped a dataset of %d transitions: %s.", selection.num_total, why)
        return
    log.error(
        "Skipped a dataset: all %d transitions are max_policy_lag=%d or more optimizer steps old (version %d, "
        "newest transition %d). Do published weights reach the inference workers? Otherwise raise "
        "--max_policy_lag.",
        selection.num_own - selection.num_left_out,
        config.max_policy_lag,
        version,
        max(labels.flatten().tolist(), default=-1),
    )
