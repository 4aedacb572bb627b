"""A function in a process of its own, so that a hang, a crash or a leak of an environment stays there."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import connection
from typing import Any, NamedTuple, TypeVar

from sf.errors import EnvError, UsageError
from sf.machine.limits import refusals_told
from sf.processes.child import KILL_GRACE_S, Child
from sf.processes.failures import as_exception, how_it_ended
from sf.processes.process import NOT_GUARDED
from sf.processes.simulators import Simulators

LAST_STEPS_S = 1.0
"""Time for a process that has closed its pipe to end by itself, so that its exit code is its own."""

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
    def __init__(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Starts at once.

        Args:
            name: for messages.
            function: at the top level of a module, like everything it is given.
            arguments: of the function.

        Raises:
            ResourceError: the kernel has nothing left for it.
        """
        self._name, self._is_over = name, False
        self._simulators = Simulators()
        try:
            self._child = Child(name, _answer, function, *arguments, simulators=self._simulators, leads_group=True)
        except BaseException:
            self._simulators.close()
            raise

    def waitables(self) -> list[Any]:
        """Readable when there is a result, or never will be."""
        return self._child.waitables()

    def result(self, timeout_s: float | None = None) -> Any:
        """The value that the function returned.

        Raises:
            EnvError: it took longer than `timeout_s` or the process died.
            SfError: the function raised it on purpose.
        """
        child = self._child
        if not connection.wait(self.waitables(), timeout_s):
            raise EnvError(f"{self._name} did not finish within {timeout_s:.0f} s. Check it on its own first.")
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
        raise EnvError(f"{self._name} failed: its process {how_it_ended(child.exit_code)}.")

    def kill(self) -> None:
        """Ends it, whether it has finished or not, and the processes that it has started."""
        if not self._is_over:
            self._is_over = True
            self._child.kill()
            self._child.reap(KILL_GRACE_S)
            self._simulators.close()


def _answer(tell: Callable[[Any], None], function: Callable[..., Any], *arguments: Any) -> None:
    tell(Answer(function(*arguments)))


def in_disposable_child(function: Callable[..., Result], *arguments: Any, timeout_s: float, what: str) -> Result:
    """Calls a function in a process of its own and waits for its result.

    Raises:
        EnvError: it took longer than `timeout_s` or the process died.
        SfError: the function raised it on purpose.
    """
    child = DisposableChild(what, function, *arguments)
    try:
        result: Result = child.result(timeout_s)
    finally:
        child.kill()
    return result
