"""Datasets that are cut short where most other ranks have their share (DD-PPO, arXiv:1911.00357, section 3)."""

from __future__ import annotations

from sf.learner.batch import Batch
from sf.learner.peers import Peers
from sf.learner.source import BatchSource
from sf.shared.records import Record

LOOK_AT_OTHERS_S = 0.05
"""Between two looks of a late rank whether most others have their share of a dataset; a look takes some 0.2 ms."""


class CutShort:
    """Takes the part of a share that is there when most other ranks wait for this one."""

    def __init__(self, least: int) -> None:
        """Takes the number of trajectories that are enough; 0 if others do not go on before this rank is ready."""
        self.least, self.was_cut = least, False
        """Whether the newest dataset is a part of one."""

    def next(self, source: BatchSource, peers: Peers) -> Batch | None:
        """A dataset, or a part of one where most other ranks have theirs."""
        batch = source.next()
        self.was_cut = False
        if batch is None and self.may_come(source) and peers.others_wait():
            batch = source.next(self.least)
            self.was_cut = batch is not None
        return batch

    def may_come(self, source: BatchSource) -> bool:
        """Whether there is enough to go on with as soon as most other ranks have their share."""
        return 0 < self.least <= source.rows_waiting

    def note(self, record: Record, num_ranks: int) -> str:
        """Counts ranks that have contributed a part of their share; the first time it returns a sentence."""
        is_first = num_ranks and not record["cut_short"]
        record["cut_short"] += num_ranks
        if not is_first:
            return ""
        return (
            "A rank has contributed the part of its batch that it had, because most others had theirs. "
            "--ranks_to_wait_for=1 waits for all; summary.json counts such batches as cut_short."
        )
