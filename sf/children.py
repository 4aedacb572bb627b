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

from sf.errors import EnvError, InternalError, SfError, UsageError, WorkerCrashed
from sf.process import (
    NOT_GUARDED,
    STOPPING,
    Failure,
    Ready,
    RoleSpec,
    as_exception,
    call_in_child,
    run_child,
    stop_signals_blocked,
)
from sf.signals import Signals
from sf.wiring import Shared

START_TIMEOUT_S = 120.0
"""Time for all children to become ready; importing torch and making slow environments is part of it."""
STOP_GRACE_S = 20.0
"""Time for a learner to finish its iteration and save, and for environments to close, before they are killed."""
KILL_GRACE_S = 5.0
"""Time for the kernel to confirm a kill; a process in uninterruptible sleep is named and left to it."""

NOT_GUARDED_TEXT = (
    "The script calls sf.train when it is imported, and every process of the run imports it. Put the call below\n"
    '    if __name__ == "__main__":\n'
    "so that only the script itself trains."
)

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
        return WorkerCrashed(
            f"{who} {how} without being told to, and left no traceback. The run cannot go on without it."
        )


class Processes:
    """All child processes of one run. Used from the main thread only: a child ends with the thread that made it."""

    def __init__(self, shared: Shared):
        self.shared = shared
        self.children: list[Child] = []
        self.start_deadline = float("inf")
        self.has_news = False
        """Somebody rang: a role has something that should not wait for the next look at the clock."""

    def start(self, specs: Sequence[RoleSpec]) -> None:
        """Spawns one process per role; they report when they are ready."""
        context = multiprocessing.get_context("spawn")
        self.start_deadline = time.monotonic() + START_TIMEOUT_S
        for spec in specs:
            reports, child_end = context.Pipe(duplex=False)
            process = context.Process(
                target=run_child, args=(spec, os.getpid(), self.shared.arena, child_end), name=spec.name
            )
            with stop_signals_blocked():
                process.start()
            child_end.close()
            self.children.append(Child(spec.name, process, reports))

    def advance(self, timeout_s: float, signals: Signals) -> None:
        """Sleeps until a child reports or ends, somebody rings, a signal arrives or `timeout_s` is over.

        Raises:
            SfError: a child has failed or ended.
        """
        bell = self.shared.supervisor_bell
        others: list[Any] = [bell.fileno(), signals.fileno()]
        readable = connection.wait([*self._waitables(), *others], timeout=max(0.0, timeout_s))
        self.has_news = bell.fileno() in readable
        bell.clear()
        signals.clear()
        if any(waitable not in others for waitable in readable):
            self._check()
        if time.monotonic() > self.start_deadline:
            self._check_started()

    def _waitables(self) -> list[Any]:
        """What becomes readable when a child reports or ends."""
        return [waitable for child in self.children for waitable in (child.process.sentinel, child.reports)]

    @property
    def is_ready(self) -> bool:
        """Whether every role is built; counters mean something from then on."""
        return all(child.is_ready for child in self.children)

    def _check_started(self) -> None:
        late = [child.name for child in self.children if not child.is_ready]
        if late:
            raise InternalError(f"{', '.join(late)} did not become ready within {START_TIMEOUT_S:.0f} s.")
        self.start_deadline = float("inf")

    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {child.name: child.process.pid for child in self.children if child.process.pid is not None}

    def _check(self) -> None:
        for child in self.children:
            child.hear()
        failed = [child for child in self.children if child.failure is not None or not child.process.is_alive()]
        if failed:
            child = next((child for child in failed if child.failure is not None), failed[0])
            child.process.join(KILL_GRACE_S)
            child.hear()
            raise child.ending()

    def stop(self, signals: Signals) -> list[str]:
        """Asks all to end, waits, and kills those that do not, or all at a second signal; returns what went wrong."""
        self.shared.run_state[0] = STOPPING
        for doorbell in self.shared.doorbells:
            doorbell.ring()
        deadline = time.monotonic() + STOP_GRACE_S
        while (alive := self._alive()) and time.monotonic() < deadline and not signals.is_urgent:
            connection.wait([*(child.process.sentinel for child in alive), signals.fileno()], timeout=1.0)
            signals.clear()
        problems = [f"{child.name} (pid {child.process.pid}) did not stop and was killed" for child in alive]
        self.kill()
        for child in self.children:
            child.hear()
            if child.failure is not None:
                problems.append(str(child.ending()))
        return problems

    def ended_well(self, prefix: str) -> bool:
        """Whether no process of this role was killed; says nothing of those that never started."""
        return all((child.process.exitcode or 0) >= 0 for child in self.children if child.name.startswith(prefix))

    def kill(self) -> None:
        """Ends whatever still runs, at once."""
        for child in self._alive():
            child.process.kill()
        deadline = time.monotonic() + KILL_GRACE_S
        for child in self.children:
            child.process.join(max(0.0, deadline - time.monotonic()))

    def _alive(self) -> list[Child]:
        return [child for child in self.children if child.process.is_alive()]


class DisposableChild:
    """Calls a function in a process of its own, so that a hang, a crash or a leak stays there."""

    def __init__(self, what: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Starts at once.

        Args:
            what: for messages.
            function: at the top level of a module, like everything it is given.
            arguments: of the function.
        """
        self._what = what
        context = multiprocessing.get_context("spawn")
        self._reports, child_end = context.Pipe(duplex=False)
        self._process = context.Process(
            target=call_in_child, args=(function, arguments, child_end, os.getpid()), daemon=True
        )
        with stop_signals_blocked():
            self._process.start()
        child_end.close()

    def result(self, timeout_s: float | None = None) -> Any:
        """What the function returned.

        Raises:
            EnvError: it took longer than `timeout_s` or the process died.
            SfError: whatever the function raised on purpose.
        """
        try:
            if not self._reports.poll(timeout_s):
                raise EnvError(
                    f"{self._what} did not finish within {timeout_s:.0f} s. Check the environment on its own first."
                )
            answer = self._reports.recv()
        except EOFError:
            self._process.join(KILL_GRACE_S)
            if self._process.exitcode == NOT_GUARDED:
                raise UsageError(NOT_GUARDED_TEXT) from None
            raise EnvError(f"{self._what} ended its process (exit code {self._process.exitcode}).") from None
        if isinstance(answer, Failure):
            raise as_exception(answer, self._what)
        return answer

    def kill(self) -> None:
        """Ends it, whether it has finished or not."""
        self._process.kill()
        self._process.join(KILL_GRACE_S)
        self._reports.close()


def in_disposable_child(function: Callable[..., Result], *arguments: Any, timeout_s: float, what: str) -> Result:
    """Calls a function in a process of its own and waits for its result.

    Raises:
        EnvError: it took longer than `timeout_s` or the process died.
        SfError: whatever the function raised on purpose.
    """
    child = DisposableChild(what, function, *arguments)
    try:
        result: Result = child.result(timeout_s)
    finally:
        child.kill()
    return result
