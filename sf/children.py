"""The child processes of a run: started, watched through their sentinels, stopped with deadlines, never left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from sf.arena import Arena
from sf.doorbell import Doorbell
from sf.errors import EnvError, SfError, WorkerCrashed
from sf.process import STOPPING, Failure, Ready, RoleSpec, as_exception, call_in_child, run_child

STOP_GRACE_S = 20.0
"""Time for a learner to finish its iteration and save, and for environments to close, before they are killed."""
KILL_GRACE_S = 5.0
"""Time for the kernel to confirm a kill; a process in uninterruptible sleep is named and left to it."""

Result = TypeVar("Result")


@dataclass
class Child:
    """One process and what it has told so far."""

    name: str
    process: SpawnProcess
    reports: Connection
    is_ready: bool = False
    failure: Failure | None = None

    def hear(self) -> None:
        """Reads what the child has reported."""
        try:
            while self.reports.poll():
                message = self.reports.recv()
                if isinstance(message, Failure):
                    self.failure = message
                else:
                    assert isinstance(message, Ready), message
                    self.is_ready = True
        except (EOFError, OSError):
            pass  # the sentinel tells the rest

    def ending(self) -> SfError:
        """The error that says how this child ended, although nobody had told it to."""
        who = f"{self.name} (pid {self.process.pid})"
        if self.failure is not None:
            return as_exception(self.failure, who)
        code = self.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"exited with code {code}"
        return WorkerCrashed(f"{who} {how} without being told to, and left no traceback. The run cannot go on without it.")


class Children:
    """All child processes of one run. Must be used from the main thread: children end with the thread that made them."""

    def __init__(self, arena: Arena, doorbells: Sequence[Doorbell]):
        self.arena, self.doorbells = arena, list(doorbells)
        self.children: list[Child] = []

    def start(self, specs: Sequence[RoleSpec]) -> None:
        """Spawns one process per role; they report when they are ready."""
        context = multiprocessing.get_context("spawn")
        for spec in specs:
            reports, child_end = context.Pipe(duplex=False)
            process = context.Process(
                target=run_child, args=(spec, os.getpid(), self.arena, child_end), name=spec.name, daemon=True
            )
            process.start()
            child_end.close()
            self.children.append(Child(spec.name, process, reports))

    @property
    def waitables(self) -> list[Any]:
        """What becomes readable when a child reports or ends."""
        return [waitable for child in self.children for waitable in (child.process.sentinel, child.reports) if not child.reports.closed]

    @property
    def all_ready(self) -> bool:
        return all(child.is_ready for child in self.children)

    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {child.name: child.process.pid for child in self.children if child.process.pid is not None}

    def check(self) -> None:
        """Hears what is new.

        Raises:
            SfError: a child has failed or ended.
        """
        for child in self.children:
            child.hear()
        failed = [child for child in self.children if child.failure is not None or not child.process.is_alive()]
        if failed:
            child = next((child for child in failed if child.failure is not None), failed[0])
            child.process.join(KILL_GRACE_S)
            child.hear()
            raise child.ending()

    def stop(self, is_urgent: Callable[[], bool]) -> list[str]:
        """Asks all to end, waits, and kills those that do not; returns what went wrong.

        Args:
            is_urgent: looked at while waiting; True kills at once.
        """
        self.arena["run_state"][0] = STOPPING
        for doorbell in self.doorbells:
            doorbell.ring()
        deadline = time.monotonic() + STOP_GRACE_S
        while (alive := self._alive()) and time.monotonic() < deadline and not is_urgent():
            connection.wait([child.process.sentinel for child in alive], timeout=0.1)
        problems = [f"{child.name} (pid {child.process.pid}) did not stop and was killed" for child in alive]
        self.kill()
        for child in self.children:
            child.hear()
            if child.failure is not None:
                problems.append(str(child.ending()))
        return problems

    def kill(self) -> None:
        """Ends whatever still runs, at once."""
        for child in self._alive():
            child.process.kill()
        deadline = time.monotonic() + KILL_GRACE_S
        for child in self.children:
            child.process.join(max(0.0, deadline - time.monotonic()))

    def _alive(self) -> list[Child]:
        return [child for child in self.children if child.process.is_alive()]


def in_disposable_child(function: Callable[..., Result], *arguments: Any, timeout_s: float, what: str) -> Result:
    """Calls a function in a process of its own, so that a hang, a crash or a leak stays there.

    Raises:
        EnvError: it took longer than `timeout_s` or the process died.
        SfError: whatever the function raised on purpose.
    """
    context = multiprocessing.get_context("spawn")
    reports, child_end = context.Pipe(duplex=False)
    process = context.Process(target=call_in_child, args=(function, arguments, child_end, os.getpid()), daemon=True)
    process.start()
    child_end.close()
    try:
        if not reports.poll(timeout_s):
            raise EnvError(f"{what} did not finish within {timeout_s:.0f} s. Check the environment on its own first.")
        answer = reports.recv()
    except EOFError:
        process.join(KILL_GRACE_S)
        raise EnvError(f"{what} ended its process (exit code {process.exitcode}).") from None
    finally:
        process.kill()
        process.join(KILL_GRACE_S)
        reports.close()
    if isinstance(answer, Failure):
        raise as_exception(answer, what)
    result: Result = answer
    return result
