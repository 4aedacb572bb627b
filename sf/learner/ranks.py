"""The exchange between the learners of one policy in several runs, which ``torchrun`` has started as ranks.

It follows the rules of `sf.learner.peers`. Numbers travel through a process group of gloo, on one machine and between
machines. With accelerators they go over copies on the host.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

import torch
from torch import Tensor

from sf.learner.meeting import HUNG_S, Pulse, RankLost, carry_reasons, meet, open_store, stop_looker, what_was_lost
from sf.learner.peers import HostCopy, Team
from sf.machine.rank import Rank
from sf.nets.private import PrefixStore, Work
from sf.shared.arena import Arena
from sf.shared.doorbell import Doorbell
from sf.shared.leaving import Leaving
from sf.shared.progress import Phase, Progress

LOOK_AGAIN = timedelta(seconds=1)
"""No wait is longer before the next look whether the others live."""
LEAVE_S = 12.0
"""Longest wait at the end for the others, which finish an iteration; less than the supervisor waits for this one."""


class Ranks(Team):
    """The learners of one policy, one in each rank."""

    def __init__(
        self, rank: Rank, policy_id: int, arena: Arena, bell: Doorbell, progress: Progress, enough: int | None = None
    ) -> None:
        """Waits for the other ranks.

        Args:
            rank: of this learner.
            policy_id: of the policy that all of them train.
            arena: of this rank.
            bell: of this learner; rung when all have announced a dataset.
            progress: of this learner, which does not hang while it waits for one that does.
            enough: ranks that have their share of a dataset when the others train with what they have; None for all.

        Raises:
            RankLost: a rank does not come.
            WorkerCrashed: there is no store of ``torchrun``.
            Stopped: the run ends.
        """
        super().__init__()
        self.rank, self._bell, self._progress = rank, bell, progress
        self._store = PrefixStore(f"policy{policy_id}", open_store(rank))
        self._leaving = Leaving(arena)
        self._pulse = Pulse(rank, policy_id, self._leaving)
        look = stop_looker(arena["run_state"], lambda: progress.enter(Phase.START))
        self._group = meet(rank, self._store, look)
        self._host = HostCopy()
        self._announced = [torch.zeros(1, dtype=torch.float64) for _ in range(rank.world_size)]
        self._work: Work | None = None
        """The exchange of announcements that is going on."""
        self._enough, self._num_agreed = enough or rank.world_size, 0

    def others_wait(self) -> bool:
        """See `Peers`: ranks that are ready are counted in the store (DD-PPO, arXiv:1911.00357, section 3)."""
        return self._num_ready(0) >= self._enough

    def _announce(self, intention: float) -> None:
        super()._announce(intention)
        self._num_ready(1)

    def _num_ready(self, more: int) -> int:
        """Ranks that have announced the present dataset, with `more` of them now; 0 where all are waited for."""
        if self._enough == self.rank.world_size or self._is_over:
            return 0
        try:
            # Nothing is announced of a dataset before all have announced the one before.
            return int(self._store.add("ready", more)) - self._num_agreed * self.rank.world_size
        except RuntimeError:  # the store is gone, which the pulse has noticed
            return 0

    def _post(self, word: float) -> None:
        own = torch.tensor([word], dtype=torch.float64)
        self._work = self._group.allgather([self._announced], [own])
        self._future = self._work.get_future()
        self._future.add_done_callback(lambda _: self._bell.ring())

    def _is_complete(self) -> bool:
        assert self._work is not None
        if self._future.done():  # the work itself says so a moment after the bell
            self._finish(self._work)
            return True
        self._look_for_silent_ranks()
        return False

    def _wait(self) -> None:
        assert self._work is not None
        self._finish(self._work, LEAVE_S)

    def _words(self) -> Sequence[float]:
        return [word.item() for word in self._announced]

    def _say_goodbye(self) -> None:
        """The others hear of it within moments, and end after the same iteration."""
        self._carry_reasons()
        self._wait()

    def _agree(self) -> bool:
        all_go_on = super()._agree()
        self._num_agreed += 1
        if not all_go_on:
            self._carry_reasons()  # at once, because torchrun ends this rank when the other one has ended
        return all_go_on

    def _carry_reasons(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone, which the pulse has noticed
            carry_reasons(self.rank, self._store, self._leaving)

    def gather(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """See `Peers`."""
        own = torch.cat([tensor.detach().to(torch.float64).flatten() for tensor in tensors]).cpu()
        sizes = [tensor.numel() for tensor in tensors]
        device = tensors[0].device
        rows = [torch.split(row.to(device), sizes) for row in self._gathered(own)]
        return [tuple(part.view(tensor.shape) for part, tensor in zip(row, tensors, strict=True)) for row in rows]

    def mean_(self, tensor: Tensor, weight: float) -> None:
        """See `Peers`."""
        own = self._host.of(tensor.detach().view(-1))
        sums = torch.empty(own.numel() + 1, dtype=own.dtype)
        if weight:
            torch.mul(own, weight, out=sums[:-1])
        else:
            sums[:-1].zero_()
        sums[-1] = weight
        self._exchanged(self._group.allreduce([sums]))
        total = sums[-1].item()
        if total:
            sums[:-1].div_(total)
        tensor.copy_(sums[:-1].view(tensor.shape))

    def take_from_first(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See `Peers`."""
        taken = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        for tensor in taken.values():
            self._exchanged(self._group.broadcast(tensor.view(-1), 0))
        return taken

    def _gathered(self, own: Tensor) -> list[Tensor]:
        rows = [torch.empty_like(own) for _ in range(self.rank.world_size)]
        self._exchanged(self._group.allgather([rows], [own]))
        return rows

    def _exchanged(self, work: Work) -> None:
        """Waits for an exchange that belongs to the training."""
        began_s = time.perf_counter()
        self._finish(work)
        self.exchange_s += time.perf_counter() - began_s

    def _finish(self, work: Work, within_s: float = float("inf")) -> None:
        """Waits until all ranks have taken part.

        Raises:
            RankLost: one of them cannot.
        """
        deadline_s = time.monotonic() + within_s
        while True:
            has_ended = work.is_completed()
            try:
                work.wait(LOOK_AGAIN)
                return
            except RuntimeError as error:  # also after LOOK_AGAIN
                if has_ended:
                    self._is_over = True
                    raise self._lost("has ended without telling the others", str(error)) from None
            if work.is_completed():
                continue
            self._progress.enter(Phase.STEP)
            self._look_for_silent_ranks()
            if time.monotonic() > deadline_s:
                self._is_over = True
                raise RankLost(f"Rank {self.rank.rank} ends, and others do not hear of it within {within_s:.0f} s.")

    def _lost(self, how: str, cause: str = "nothing") -> RankLost:
        cause = cause.split("] ")[-1].split(". ")[0]  # without the place in the source of gloo, and its advice
        look = partial(self._progress.enter, Phase.STEP)
        return what_was_lost(self.rank, self._store, self._pulse, how, cause, look)

    def _look_for_silent_ranks(self) -> None:
        """Where nothing fails, a rank may hang all the same.

        Raises:
            RankLost: one hangs, or the store of ``torchrun`` is gone.
        """
        silent = [other for other, silent_s in self._pulse.silent_for().items() if silent_s > HUNG_S]
        if silent or self._pulse.error:
            self._is_over = True
            raise self._lost(f"has given no sign of life for {HUNG_S:.0f} s")
