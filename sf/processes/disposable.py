"""A function in a process of its own, so that a hang, a crash or a leak of an environment stays there."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, TypeVar

from sf.errors import EnvError, UsageError
from sf.machine.limits import refusals_told
from sf.processes.process import NOT_GUARDED, Failure, as_exception, call_in_child, how_it_ended
from sf.processes.simulators import Simulators, starting
from sf.processes.spawning import spawned

LAST_STEPS_S = 1.0
"""Time for a process that has closed its pipe to end by itself, so that its exit code is its own."""
KILL_GRACE_S = 4.0
"""Time for the kernel to confirm a kill."""

NOT_GUARDED_TEXT = (
    "The script calls sf.train when it is imported, and every process of the run imports it. Put the call below\n"
    '    if __name__ == "__main__":\n'
    "so that only the script itself trains."
)

Result = TypeVar("Result")


class DisposableChild:
    """Calls a function in a process of its own, so that a hang, a crash or a leak stays there."""

    @refusals_told()
    def __init__(self, what: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Starts at once.

        Args:
            what: for messages.
            function: at the top level of a module, like everything it is given.
            arguments: of the function.

        Raises:
            ResourceError: the kernel has nothing left for it.
        """
        self._what = what
        self._reports, child_end = multiprocessing.Pipe(duplex=False)
        self._simulators = Simulators()
        self._mark = self._simulators.mark_of(what, 0)
        self._process = spawned(call_in_child, function, arguments, child_end, os.getpid())
        try:
            with starting(self._mark):
                self._process.start()
                assert self._process.pid is not None
                self._pidfd = os.pidfd_open(self._process.pid)
                self._simulators.watch(self._process.pid)
                # Else the end of this program waits for it, also where the kernel does not end it.
                multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]
        except BaseException:  # also a signal, whether it came before the start or has waited for the end of it
            if self._process.pid is not None:
                self._process.kill()
                self._process.join(KILL_GRACE_S)
            self._reports.close()
            self._simulators.close()
            raise
        finally:
            child_end.close()

    def waitables(self) -> list[int]:
        """What becomes readable when there is a result, or never will be: what it has forked may hold the pipe open."""
        return [self._reports.fileno(), self._pidfd]

    def result(self, timeout_s: float | None = None) -> Any:
        """What the function returned.

        Raises:
            EnvError: it took longer than `timeout_s` or the process died.
            SfError: whatever the function raised on purpose.
        """
        try:
            if not connection.wait(self.waitables(), timeout_s):
                raise EnvError(f"{self._what} did not finish within {timeout_s:.0f} s. Check it on its own first.")
            if not self._reports.poll():
                raise EOFError
            answer = self._reports.recv()
        except EOFError:
            has_ended = connection.wait([self._pidfd], LAST_STEPS_S)
            self.kill()
            if not has_ended:
                raise EnvError(f"{self._what} failed: its process closed the pipe to this one and went on.") from None
            if self._exit_code == NOT_GUARDED:
                raise UsageError(NOT_GUARDED_TEXT) from None
            raise EnvError(f"{self._what} failed: its process {how_it_ended(self._exit_code)}.") from None
        if isinstance(answer, Failure):
            raise as_exception(answer, self._what)
        return answer

    def kill(self) -> None:
        """Ends it, whether it has finished or not, and what it has started."""
        if self._reports.closed:
            return
        assert self._process.pid is not None
        self._process.kill()
        if not connection.wait([self._pidfd], KILL_GRACE_S):
            self._simulators.unkillable.add(self._process.pid)
        self._simulators.end_of(self._process.pid, self._mark)
        self._exit_code = self._process.exitcode  # reaps it
        os.close(self._pidfd)
        self._reports.close()
        self._simulators.close()


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
