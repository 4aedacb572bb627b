"""How the learners of one policy find each other across ranks, and notice what becomes of the others.

``torchrun`` keeps a store of keys and values for all ranks, also when it starts them again. `sf.run.ranks` numbers the
starts. Each has keys of its own:

    policy<p>/here/<r>  rank r wants to train policy p
    policy<p>/beat/<r>  a number that grows while the learner of rank r lives
    policy<p>/leaving   the first rank that wants to end, and why
    policy<p>/lost      the sentence about a rank that has died; all say the same

The numbers of training go from rank to rank, through a process group of gloo. A thread of each learner, the pulse,
writes its beat and reads what the others say. It leaves all decisions to the thread that trains.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol, cast

from torch import Tensor

from sf.errors import WorkerCrashed
from sf.machine.rank import Rank
from sf.nets.private import PrefixStore, Store, TCPStore, Work, gloo_group
from sf.processes.process import RUNNING, Stopped
from sf.shared.arena import Array
from sf.shared.exchange import PeerLost
from sf.shared.leaving import Heard, Leaving

BEAT_S = 0.5
"""Time between two beats, and the longest time until a rank hears that another one wants to end."""
SILENT_S = 3.0
"""A learner whose connections break and that does not beat for so long is dead."""
HUNG_S = 60.0
"""A learner that does not beat for so long hangs, or the network does; as long as other processes may do nothing."""
GATHER_S = 600.0
"""Longest wait for all ranks at the beginning; some may have to be installed or fetched first."""
STORE_S = 30.0
"""Longest wait for an answer of the store."""
NO_LIMIT = timedelta(days=1)
"""For the process group: a rank that computes for long is alive, and the beats tell of the others."""
LOOPBACK = "127.0.0.1"


class RankLost(PeerLost):
    """A rank has died or hangs. No other process of this rank knows of it, so the learner tells."""

    ends_run = True


class ProcessGroup(Protocol):
    """The methods of a process group that are used; the stubs of torch lack them."""

    def allreduce(self, tensors: list[Tensor]) -> Work:
        """Replaces each tensor by its sum over all ranks."""

    def allgather(self, rows: list[list[Tensor]], own: list[Tensor]) -> Work:
        """Puts the tensors of all ranks into rows, one list for each of `own`."""

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        """Replaces the tensor by that of rank `source`."""


def open_store(rank: Rank) -> Store:
    """A client of the store of ``torchrun``, with the keys of this start of all ranks as soon as its number is known.

    Raises:
        WorkerCrashed: the store cannot be reached.
    """
    try:
        store = TCPStore(rank.host, rank.port, is_master=False, timeout=timedelta(seconds=STORE_S))
    except (RuntimeError, ValueError) as error:
        raise WorkerCrashed(
            f"The store of torchrun at {rank.host}:{rank.port} cannot be reached from rank {rank.rank}: {_first(error)}"
        ) from None
    return PrefixStore(f"sf/start{rank.start}" if rank.start else "sf", store)


def meet(rank: Rank, store: Store, look: Callable[[], None]) -> ProcessGroup:
    """Waits for the same learner of all ranks and connects to them; `look` is called again and again, and may raise.

    Raises:
        RankLost: a rank does not come.
    """
    store.set(f"here/{rank.rank}", "")
    missing, deadline_s = list(range(rank.world_size)), time.monotonic() + GATHER_S
    while missing := [other for other in missing if not store.check([f"here/{other}"])]:
        if time.monotonic() > deadline_s:
            raise RankLost(
                f"Rank {rank.rank} has waited {GATHER_S:.0f} s for {_ranks(missing)} of {rank.world_size}, which did "
                "not begin to train. Look at what the others have printed, and at the network between the machines."
            )
        look()
        time.sleep(0.05)
    host = LOOPBACK if rank.local_world_size == rank.world_size else None
    group = gloo_group(PrefixStore("gloo", store), rank.rank, rank.world_size, host, NO_LIMIT)
    return cast(ProcessGroup, group)


class Pulse:
    """The thread that shows the others that this learner lives, and hears that they want to end."""

    def __init__(self, rank: Rank, policy_id: int, leaving: Leaving) -> None:
        """Begins at once.

        Args:
            rank: of this learner.
            policy_id: of the policy that it trains.
            leaving: why this rank ends, or another one.
        """
        self._rank, self._leaving = rank, leaving
        self._store = PrefixStore(f"policy{policy_id}", open_store(rank))
        self._seen: dict[int, tuple[bytes, float]] = {}
        """The newest beat of each rank, and when it was first seen."""
        self.error = ""
        """Why the store cannot be reached any more."""
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def silent_for(self) -> dict[int, float]:
        """Seconds since the newest sign of life of each other rank, as far as this one has seen."""
        now = time.monotonic()
        return {rank: now - seen_s for rank, (_, seen_s) in list(self._seen.items())}

    def _run(self) -> None:
        count = 0
        try:
            while True:
                self._store.set(f"beat/{self._rank.rank}", str(count))
                count += 1
                carry_reasons(self._rank, self._store, self._leaving)
                self._look_at_others()
                time.sleep(BEAT_S)
        except RuntimeError as error:  # the store is gone, and so are all hopes
            self.error = _first(error)

    def _look_at_others(self) -> None:
        """One request for all, as soon as each has beaten once."""
        others = [other for other in range(self._rank.world_size) if other != self._rank.rank]
        others = [other for other in others if other in self._seen or self._store.check([f"beat/{other}"])]
        beats = self._store.multi_get([f"beat/{other}" for other in others]) if others else []
        now = time.monotonic()
        for other, beat in zip(others, beats, strict=True):
            if other not in self._seen or self._seen[other][0] != beat:
                self._seen[other] = beat, now


def carry_reasons(rank: Rank, store: Store, leaving: Leaving) -> None:
    """Tells the other ranks why this one ends, or hears it from them; the first rank that ends says it for all.

    Raises:
        RuntimeError: the store cannot be reached.
    """
    if leaving.heard is not None:
        return
    if leaving.own:
        store.compare_set("leaving", "", f"{leaving.own} {rank.rank}")
    if store.check(["leaving"]):
        heard = Heard(*map(int, store.get("leaving").split()))
        if heard.rank != rank.rank:
            leaving.hear(heard)


def what_was_lost(rank: Rank, store: Store, pulse: Pulse, how: str, cause: str, look: Callable[[], None]) -> RankLost:
    """The error that names the rank that has died; all ranks that are left give the same answer.

    Args:
        rank: of this learner.
        store: of the policy; not used by the pulse.
        pulse: of this learner.
        how: the lost rank was lost, after its number.
        cause: what gloo says, for a rank whose number cannot be found out.
        look: called again and again.
    """
    deadline_s = time.monotonic() + SILENT_S + 2 * BEAT_S
    try:
        while True:
            silent = [other for other, silent_s in pulse.silent_for().items() if silent_s >= SILENT_S]
            if store.check(["lost"]):
                return RankLost(store.get("lost").decode())
            if pulse.error:
                raise RuntimeError(pulse.error)
            if silent or time.monotonic() > deadline_s:
                whom = f"{_ranks(silent)} of {rank.world_size}" if silent else "Another rank"
                verdict = f"{whom} {how}, so all of them end."
                if not silent:
                    verdict += f" The connections say: {cause}"
                return RankLost(store.compare_set("lost", "", verdict).decode())
            look()
            time.sleep(0.1)
    except RuntimeError as error:
        return RankLost(
            f"Rank {rank.rank} of {rank.world_size} has lost the others, and the store of torchrun at "
            f"{rank.host}:{rank.port}: {_first(error)}"
        )


def stop_looker(run_state: Array, progress: Callable[[], None]) -> Callable[[], None]:
    """Marks progress, and leaves a learner that is being built where the run stops."""

    def look() -> None:
        progress()
        if run_state[0] != RUNNING:
            raise Stopped

    return look


def _ranks(numbers: Sequence[int]) -> str:
    return f"{'Rank' if len(numbers) == 1 else 'Ranks'} {', '.join(map(str, numbers))}"


def _first(error: Exception) -> str:
    return str(error).split("\n")[0]
