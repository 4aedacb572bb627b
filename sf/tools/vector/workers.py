"""The worker processes of a vector environment: started, given orders, watched and ended together."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np

from sf.console import Console
from sf.envs import EnvSource
from sf.errors import EnvCrashed, EnvError, UsageError
from sf.processes.callers import NOT_GUARDED
from sf.processes.child import KILL_GRACE_S, Child
from sf.processes.disposable import NOT_GUARDED_TEXT
from sf.processes.failures import as_exception
from sf.processes.simulators import Simulators
from sf.shared.arena import Arena
from sf.shared.doorbell import Doorbell
from sf.shared.order import observe, publish
from sf.shared.progress import phase_of
from sf.spaces import EnvInfo
from sf.tools.vector.worker import CLOSE, Infos, WorkerPlace, serve

ALL = slice(None)
BEGIN_S = 300.0
"""For all workers to start and to make their environments."""
END_S = 5.0
"""For a worker to close its environments."""
REAP_S = 2.0
"""Between two looks for processes that environments have left behind and that have ended; a look takes some ms."""


class VectorWorkers:
    """Processes that step a share of the environments each; the end of one is the end of all."""

    closed: bool
    """Whether they have ended, or have not begun."""

    def _begin(
        self,
        source: EnvSource,
        info: EnvInfo,
        action_space: gymnasium.Space[Any],
        arena: Arena,
        shares: list[tuple[int, int]],
        timeout_s: float,
    ) -> None:
        """Starts one process for each share.

        Args:
            source: of the environments.
            info: their spaces.
            action_space: of a single one.
            arena: the memory that all share.
            shares: first environment of each worker, and one more than its last.
            timeout_s: longest time for a step or a reset of all environments.

        Raises:
            EnvError: an environment cannot be made; then no process is left.
        """
        self._info, self._arena, self._shares, self._timeout_s = info, arena, shares, timeout_s
        self._children: list[Child] = []
        self._bell, self._poll = Doorbell(), select.poll()
        self._bells = [Doorbell() for _ in shares]
        self._starts: list[Connection] = []
        self._simulators, self._next_reap_s = Simulators(), 0.0
        try:
            for index, (first, stop) in enumerate(shares):
                theirs, ours = Pipe(duplex=False)
                self._starts.append(ours)
                place = WorkerPlace(
                    index, first, stop, replace(source, worker=index), info, action_space,
                    arena, self._bells[index], self._bell, theirs,
                )  # fmt: skip
                with theirs:
                    child = Child(f"envs-{index}", serve, place, simulators=self._simulators, leads_group=True)
                self._children.append(child)
            self.closed = False
            self._poll.register(self._bell, select.POLLIN)
            for child in self._children:
                for waitable in child.waitables():
                    self._poll.register(waitable, select.POLLIN)
            self._wait(lambda: all(child.is_ready for child in self._children), BEGIN_S, {})
        except BaseException:
            self._end(0.0)
            raise

    def _carry_out(self, order: int, starts: Sequence[bytes] = ()) -> dict[int, dict[str, Any]]:
        """Has all workers do it; returns infos by environment.

        Args:
            order: for all.
            starts: for each of them, if the order needs one. They are read while they are sent, however long they are.
        """
        orders, told, infos = self._arena["orders"], self._arena["told"], dict[int, dict[str, Any]]()
        publish(orders, ALL, order)
        for bell in self._bells:
            bell.ring()
        try:
            for pipe, start in zip(self._starts, starts, strict=False):
                with contextlib.suppress(BrokenPipeError):  # of a worker whose end is seen below
                    pipe.send_bytes(start)
        except BaseException:
            self._end(0.0)
            raise
        self._wait(lambda: not observe(orders, ALL).any(), self._timeout_s, infos)
        if (now_s := time.monotonic()) > self._next_reap_s:
            self._next_reap_s = now_s + REAP_S
            if warning := self._simulators.reap():
                Console().line(warning)
        for child, has_told in zip(self._children, told.tolist(), strict=True):
            if has_told:  # before it was done, but perhaps after the last look
                self._hear(child, infos)
        return infos

    def _wait(self, is_done: Callable[[], bool], timeout_s: float, infos: dict[int, dict[str, Any]]) -> None:
        """Until a condition holds; collects infos meanwhile.

        Raises:
            EnvError: a worker has ended, or the time is over.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            while not is_done():
                found = self._poll.poll(1000 * max(0.0, deadline_s - time.monotonic()))
                self._bell.clear()
                if any(number != self._bell.fd for number, _ in found):
                    for child in self._children:
                        self._hear(child, infos)
                        if child.has_ended():
                            raise self._lost(child)
                if not found:
                    raise EnvError(self._late(timeout_s))
        except BaseException:
            self._end(0.0)
            raise

    def _hear(self, child: Child, infos: dict[int, dict[str, Any]]) -> None:
        for message in child.hear():
            if isinstance(message, Infos):
                infos.update(message.of)

    def _lost(self, child: Child) -> Exception:
        if child.failure is not None:
            return as_exception(child.failure, child.name)
        child.reap(KILL_GRACE_S)
        self._children.remove(child)
        if child.exit_code == NOT_GUARDED:
            return UsageError(NOT_GUARDED_TEXT)
        return EnvCrashed(f"The environments of {self._info.env_id} are lost: {child.how_it_ended()}.")

    def _late(self, timeout_s: float) -> str:
        busy = []
        for worker in np.flatnonzero(self._arena["orders"]):
            phase, index = phase_of(int(self._arena["progress"][worker]))
            busy.append(f"{phase.name.lower()} of environment {self._shares[worker][0] + index}")
        return (
            f"{self._info.env_id} has not answered for {timeout_s:g} s: {', '.join(busy) or 'it is being made'}. Check "
            "it on its own, or raise timeout_s."
        )

    def _close(self) -> None:
        """Asks all workers to end, and kills those that do not in time."""
        publish(self._arena["orders"], ALL, CLOSE)
        for bell in self._bells:
            bell.ring()
        self._end(END_S)

    def _end(self, within_s: float) -> None:
        """Ends all workers."""
        self.closed = True
        deadline_s = time.monotonic() + within_s
        for child in self._children:
            if not child.has_ended(max(0.0, deadline_s - time.monotonic())):
                child.kill()
            child.reap(KILL_GRACE_S)
        self._children.clear()
        for pipe in self._starts:
            pipe.close()
        self._simulators.close()
