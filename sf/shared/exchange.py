"""Processes that do the same thing at the same time show each other numbers, through shared memory.

    round[i]       written by process i   how often it has filled its outbox
    outbox[i, b]   written by process i   its numbers in the rounds n with n mod 2 = b

Each process writes its outbox, raises its round and rings the others. When all stand at the same round, each reads all
outboxes, in the same order. A buffer is written again two rounds later. No process begins that round before all have
written the round between, that is have read this one. A round is published, and observed before the outboxes are read
or written again, see `sf.shared.order`. A waiting process looks whether the others live, so a process that dies does
not leave the others waiting.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sf.errors import InternalError, WorkerCrashed
from sf.shared.arena import Arena, Array, Field
from sf.shared.doorbell import Doorbell
from sf.shared.order import observe, publish
from sf.shared.progress import Phase, Progress

ALL = slice(None)
OUTBOX_BYTES = 2**20
"""Longer arrays go through it in parts of this size; a part is read while it is still in the cache."""
LOOK_AGAIN_S = 1.0
"""No wait is longer before the next look whether the others live."""


class PeerLost(WorkerCrashed):
    """Another process of the exchange is dead; the supervisor knows it too, says how it ended, and ends the run."""

    ends_run = False
    """Whether the supervisor must hear of it, because it knows nothing of that process."""


class Exchange:
    """One process among those that exchange."""

    def __init__(
        self, team: int, index: int, arena: Arena, bells: Sequence[Doorbell], progress: Progress | None = None
    ) -> None:
        """Tells the others the id of this process.

        Args:
            team: which processes exchange with each other.
            index: of this process in its team.
            arena: with `exchange_fields`.
            bells: of all processes of the team. Any process may ring a doorbell: the woken process looks at the words.
                A ring for another reason that is consumed here is lost, so this process must look at everything before
                it sleeps.
            progress: of this process, which does not hang while it waits for one that does.
        """
        self.index, self._bells = index, list(bells)
        self._name = f"learner {index} of policy {team}"
        self._rounds: Array = arena["exchange/round"][team]
        self._pids: Array = arena["exchange/pid"][team]
        self._outbox: Array = arena["exchange/outbox"][team]
        self._lengths: Array = arena["exchange/length"][team]
        self._weights: Array = arena["exchange/weight"][team]
        self._round = 0
        self._progress = progress
        self._pids[index] = os.getpid()
        self._ends: dict[int, select.poll] = {}
        """By process: says whether it has ended; made when it is waited for the first time, and kept open."""

    def __len__(self) -> int:
        """How many processes take part."""
        return len(self._bells)

    def post(self, own: Array, weight: float = 1.0) -> None:
        """Begins a round with at most OUTBOX_BYTES of numbers, and a weight beside them."""
        self._round += 1
        buffer = self._round % 2
        self._outbox[self.index, buffer, : own.nbytes].view(own.dtype)[:] = own
        self._lengths[self.index, buffer] = own.nbytes
        self._weights[self.index, buffer] = weight
        publish(self._rounds, self.index, self._round)
        for index, bell in enumerate(self._bells):
            if index != self.index:
                bell.ring()

    def is_complete(self) -> bool:
        """Whether all have begun this round.

        Raises:
            PeerLost: one that has not is dead.
        """
        for index in np.flatnonzero(observe(self._rounds, ALL) < self._round):
            lives = self._is_alive(int(index))
            if observe(self._rounds, index) >= self._round:  # meanwhile, and perhaps as its last act
                continue
            if not lives:
                raise PeerLost(f"{self._name} waited for learner {index} (pid {self._pids[index]}), which has ended.")
            return False
        return True

    def wait(self) -> None:
        """Sleeps until all have begun this round; raises like `is_complete`."""
        while not self.is_complete():
            self._bells[self.index].wait(LOOK_AGAIN_S)
            if self._progress is not None:
                self._progress.enter(Phase.STEP)

    def _is_alive(self, index: int) -> bool:
        """Whether a process lives, or has not begun yet (pid 0).

        A process that has ended is known by its pidfd, whether or not its parent has taken note of that. A process that
        was forked is a child of the fork server and not of the supervisor, and another one may get its pid.
        """
        pid = int(self._pids[index])
        if pid == 0:
            return True
        if index not in self._ends:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                return False
            self._ends[index] = select.poll()
            self._ends[index].register(pidfd, select.POLLIN)
        return not self._ends[index].poll(0)

    def read(self, dtype: npt.DTypeLike, size: int) -> list[Array]:
        """The array that each process has posted in this complete round, good until the next one."""
        buffer, num_bytes = self._round % 2, size * np.dtype(dtype).itemsize
        lengths = self._lengths[:, buffer]
        if (lengths != num_bytes).any():
            raise InternalError(
                f"{self._name} is out of step: in round {self._round} it expects {num_bytes} bytes of each learner, "
                f"found {lengths.tolist()}."
            )
        return [outbox[buffer, :num_bytes].view(dtype) for outbox in self._outbox]

    def weights(self) -> list[float]:
        """The weights posted in this complete round."""
        weights: list[float] = self._weights[:, self._round % 2].tolist()
        return weights


def exchange_fields(num_teams: int, team_size: int) -> dict[str, Field]:
    """The words that the processes of each team share; none for a team of one."""
    if team_size == 1:
        return {}
    each = (num_teams, team_size)
    return {
        "exchange/round": Field(each, "int64"),
        "exchange/pid": Field(each, "int64"),
        "exchange/length": Field((*each, 2), "int64"),
        "exchange/weight": Field((*each, 2), "float64"),
        "exchange/outbox": Field((*each, 2, OUTBOX_BYTES), "uint8"),
    }
