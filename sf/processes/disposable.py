"""A function in a process of its own, so that a hang, a crash or a leak of an environment stays there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, NamedTuple, TypeVar

from sf.console import Console, spoke_s
from sf.errors import EnvError, SfError, UsageError
from sf.machine.kernel import is_linux
from sf.machine.limits import refusals_told
from sf.processes.callers import NOT_GUARDED
from sf.processes.calls import Calls
from sf.processes.child import KILL_GRACE_S, Begin, Child, spawned
from sf.processes.failures import as_exception, failure_of, how_it_ended
from sf.processes.simulators import Simulators
from sf.processes.telling import LOOK_S, Pace
from sf.processes.ties import STACKS_SIGNAL

LAST_STEPS_S = 1.0
"""Time for a process that has closed its pipe to end by itself, so that its exit code is its own."""

STACKS_GRACE_S = 0.5
"""Time for a process that hangs to print the stacks of its threads."""

NOT_GUARDED_TEXT = (
    "The script starts processes when it is imported, and each of them imports it. Put the call of sf below\n"
    '    if __name__ == "__main__":\n'
    "so that only the script itself starts them."
)

Result = TypeVar("Result")


class Answer(NamedTuple):
    """The value that the function returned."""

    value: Any


class DisposableChild:
    """A child that calls one function, and the watch over processes that it starts."""

    @refusals_told()
    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        begin: Begin = spawned,
    ) -> None:
        """Starts at once.

        Args:
            name: for messages.
            function: at the top level of a module, like everything it is given.
            arguments: of the function.
            begin: starts the process.

        Raises:
            ResourceError: the kernel has nothing left for it.
        """
        self._name, self._is_over = name, False
        self._simulators = Simulators()
        try:
            self._child = Child(
                name, _answer, function, *arguments, simulators=self._simulators, leads_group=True, begin=begin
            )
        except BaseException:
            self._simulators.close()
            raise

    def waitables(self) -> list[Any]:
        """Readable when there is a result, or never will be."""
        return self._child.waitables()

    def result(self, timeout_s: float | None = None, calls: Calls | None = None) -> Any:
        """The value that the function returned.

        Args:
            timeout_s: longest wait, None for none. With it, lines say what is waited for if that takes a while.
            calls: of environments, each of which has its own limit.

        Raises:
            EnvError: it took longer than `timeout_s`, a call took too long, or the process died.
            SfError: the function raised it on purpose.
        """
        child = self._child
        if timeout_s is None:
            connection.wait(self.waitables())
        else:
            self._wait(timeout_s, calls)
        for answer in child.hear():
            return answer.value
        if child.failure is not None:
            raise as_exception(child.failure, self._name)
        has_ended = child.has_ended(LAST_STEPS_S)
        self.kill()
        if not has_ended:
            raise EnvError(f"{self._name} failed: its process closed the pipe to this one and went on.")
        if child.exit_code == NOT_GUARDED:
            raise UsageError(NOT_GUARDED_TEXT)
        where = f" during {calls.doing()}" if calls else ""
        raise EnvError(f"{self._name} failed: its process {how_it_ended(child.exit_code)}{where}.")

    def _wait(self, timeout_s: float, calls: Calls | None) -> None:
        """Until it is readable.

        Raises:
            EnvError: that takes too long.
        """
        now_s = began_s = time.monotonic()
        end_s, pace = now_s + timeout_s, Pace()
        while not connection.wait(self.waitables(), max(0.0, min(LOOK_S, end_s - now_s))):
            now_s = time.monotonic()
            if late := calls.late(now_s) if calls else "":
                self._show_stacks()
                raise EnvError(f"{self._name}: {late}")
            if now_s >= end_s:
                self._show_stacks()
                raise EnvError(f"{self._name} did not finish within {timeout_s:.0f} s. Check it on its own first.")
            if pace.is_due(now_s, spoke_s()):
                elsewhere = f"{self._name} is not over after {now_s - began_s:.0f} s."
                Console().line(calls.told(now_s) if calls else elsewhere)

    def _show_stacks(self) -> None:
        """Has it print where its threads are, on standard error."""
        Console().line(f"{self._name} hangs. Its stacks follow.")
        self._child.send_signal(STACKS_SIGNAL)
        self._child.has_ended(STACKS_GRACE_S)

    def kill(self) -> None:
        """Ends it, whether it has finished or not, and the processes that it has started."""
        if not self._is_over:
            self._is_over = True
            self._child.kill()
            self._child.reap(KILL_GRACE_S)
            self._simulators.close()


def _answer(tell: Callable[[Any], None], function: Callable[..., Any], *arguments: Any) -> None:
    tell(Answer(function(*arguments)))


def _called_here(function: Callable[..., Result], *arguments: Any, what: str) -> Result:
    """The result, or the error that a process of its own would have reported."""
    try:
        return function(*arguments)
    except SfError:
        raise
    except Exception as error:
        raise as_exception(failure_of(error), what) from error


def in_disposable_child(
    function: Callable[..., Result],
    *arguments: Any,
    timeout_s: float = math.inf,
    what: str,
    calls: Calls | None = None,
    begin: Begin = spawned,
    meanwhile: Callable[[], None] = lambda: None,
) -> Result:
    """Calls a function in a process of its own and waits for its result.

    Without Linux the function is called in this process, where no limit holds.

    Args:
        function: at the top level of a module.
        arguments: of the function.
        timeout_s: longest wait.
        what: for messages.
        calls: of environments in the process, each of which has its own limit.
        begin: starts the process.
        meanwhile: called here while the process works.

    Raises:
        EnvError: it took longer than `timeout_s`, a call took too long, or the process died.
        SfError: the function raised it on purpose.
    """
    if not is_linux():
        return _called_here(function, *arguments, what=what)
    child = DisposableChild(what, function, *arguments, begin=begin)
    try:
        meanwhile()
        result: Result = child.result(timeout_s, calls)
    finally:
        child.kill()
    return result
