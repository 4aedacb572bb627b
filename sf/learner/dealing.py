"""Minibatches of a dataset: each of its transitions in one of them per epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.learner.batch import Batch
from sf.learner.dataset import Transitions
from sf.learner.minibatches import Ages, MinibatchRows, Selection, older
from sf.learner.peers import ALONE, Peers
from sf.policy import ActorCritic, Sequences
from sf.shared.arena import Array

MOST_BYTES_AT_ONCE = 32 * 2**20
"""Largest dataset of which an epoch copies all rows at once; a larger one is copied a minibatch at a time."""


@dataclass(frozen=True)
class Minibatch:
    """The transitions of one optimizer step."""

    transitions: Transitions
    """[N] that the network goes through."""
    lags: Ages
    """Lags of the counted transitions of all learners: the version before the step minus the versions that acted."""
    each_lag: Array
    """[n] int64 on the host: the lag of each transition that trains, of this learner's share, in their order."""
    ends_epoch: bool
    sequences: Sequences | None = None
    """Sequences of a recurrent policy, whose transitions are whole trajectories in the order of time."""
    kept: Tensor | None = None
    """[n] which of the transitions train, where a recurrent policy goes through more; None for all."""
    exhausts: bool = False
    """No other minibatch of the dataset can follow after a step on this one."""
    std_mean: tuple[Tensor, Tensor] | None = None
    """Deviation and mean of the advantages that train, of all learners, if there are several."""


class MinibatchSource(Protocol):
    """Where the minibatches of a dataset come from."""

    def add(self, batch: Batch, transitions: Transitions, selection: Selection) -> None:
        """Takes in a dataset, before the first step on it."""

    def renew(self, transitions: Transitions) -> None:
        """Takes in the transitions of the same dataset, which the algorithm has prepared anew."""

    def epoch(self) -> Iterator[Minibatch]:
        """The minibatches of one epoch; each is made when it is asked for, under the version of then."""


class DealtMinibatches:
    """Deals the transitions of the newest dataset, and keeps none of them."""

    def __init__(
        self, policy: ActorCritic, config: LearnerConfig, version: Callable[[], int], peers: Peers = ALONE
    ) -> None:
        """Deals for a policy whose present version is `version()`."""
        self._peers = peers
        self._is_recurrent, self._config, self._version = policy.state_size > 0, config, version
        self._first_version = 0
        self._batch: Batch
        self._transitions: Transitions
        self._selection: Selection

    def add(self, batch: Batch, transitions: Transitions, selection: Selection) -> None:
        """See `MinibatchSource`."""
        self._batch, self._transitions, self._selection = batch, transitions, selection
        self._first_version = self._version()

    def renew(self, transitions: Transitions) -> None:
        """See `MinibatchSource`."""
        self._transitions = transitions

    def epoch(self) -> Iterator[Minibatch]:
        """See `MinibatchSource`."""
        flags = self._config
        dealt = self._selection.deal(flags.num_minibatches, flags.shuffle_minibatches, self._is_recurrent)
        std_means = self._std_means(dealt)
        for index, (rows, transitions) in enumerate(zip(dealt, self._taken(dealt), strict=True)):
            steps_since = self._version() - self._first_version
            minibatch = self._minibatch(rows, transitions, steps_since, ends_epoch=index == len(dealt) - 1)
            yield replace(minibatch, std_mean=std_means[index]) if std_means else minibatch

    def _taken(self, dealt: list[MinibatchRows]) -> Iterator[Transitions]:
        """The transitions of each minibatch that the network goes through; a small dataset is copied at once."""
        parts = [self._order(rows) for rows in dealt]
        given = [part for part in parts if part is not None]
        if len(given) == len(parts) > 1 and self._transitions.num_bytes <= MOST_BYTES_AT_ONCE:
            return self._transitions.take_parts(given)
        return (taken(self._transitions, part) for part in parts)

    def _order(self, rows: MinibatchRows) -> Tensor | None:
        """The rows of a minibatch; a recurrent policy goes through whole trajectories, step after step."""
        if rows.columns is None or rows.num_trained == 0:
            return rows.trained
        steps, num_trajectories = self._batch.rewards.shape
        columns = rows.columns
        return (torch.arange(steps, device=columns.device).unsqueeze(-1) * num_trajectories + columns).flatten()

    def _std_means(self, dealt: list[MinibatchRows]) -> list[tuple[Tensor, Tensor]] | None:
        """Moments for all minibatches at once, because each exchange takes longer than its few numbers."""
        if not self._config.normalize_advantages or not dealt:
            return None
        advantages = self._transitions.advantages
        return self._peers.std_means(
            (advantages if rows.trained is None else advantages[rows.trained] for rows in dealt),
            self._config.advantage_ddof,
        )

    def _minibatch(
        self, rows: MinibatchRows, transitions: Transitions, steps_since: int, ends_epoch: bool
    ) -> Minibatch:
        least, mean, most = rows.ages
        lags = Ages(least + steps_since, mean + steps_since, most + steps_since)
        each_lag = older(rows.each_age, steps_since)
        if rows.columns is None or rows.num_trained == 0:
            return Minibatch(transitions, lags, each_lag, ends_epoch)
        batch = self._batch
        sequences = Sequences(batch.initial_memory[rows.columns], batch.resets[:-1, rows.columns])
        return Minibatch(transitions, lags, each_lag, ends_epoch, sequences, rows.kept)


def taken(transitions: Transitions, rows: Tensor | None) -> Transitions:
    """The transitions at rows, or all of them without a copy."""
    return transitions if rows is None else transitions.take(rows)
