"""Objects in processes of their own."""

from __future__ import annotations

import collections
import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from sf.errors import UsageError, WorkerCrashed
from sf.plans.local_iterator import END, OperatorFailed
from sf.plans.program import packed
from sf.processes.child import KILL_GRACE_S, Child, spawned
from sf.processes.process import Ready
from sf.processes.simulators import Simulators


class Actor:
    """An object in a process of its own, which begins with the first call.

    ``actor.remote.method(...)`` calls a method there and returns a future. Calls are carried out in their order.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Starts nothing yet.

        Args:
            make: class or function that makes the object there.
            arguments: of it.
            named: further ones.
        """
        self.name = getattr(make, "__name__", "actor")
        self._recipe = packed(f"The actor {self.name}", (make, arguments, named))
        self._line: Line | None = None
        self._end: Callable[[], Any] | None = None

    @property
    def remote(self) -> RemoteMethods:
        """Its methods."""
        return RemoteMethods(self)

    def call(self, method: str, *arguments: Any, **named: Any) -> Future[Any]:
        """Has it carry out a method; ``apply`` calls a function with the object instead.

        Raises:
            UsageError: it was stopped, or an argument cannot be sent.
        """
        call = packed(f"A call of {self.name}.{method}", (method, arguments, named))
        if self._end is None:
            self._begin()
        if self._line is None:
            raise UsageError(f"The actor {self.name} has ended. Make a new one.")
        return self._line.send(call, self)

    def stop(self) -> None:
        """Ends the process; calls that are under way fail."""
        if self._end is None:
            self._end = lambda: None  # nothing has begun
        self._end()

    def _begin(self) -> None:
        simulators = Simulators()
        here, there = Pipe()
        begin = partial(spawned, imports_script=False)
        with there:
            try:
                child = Child(f"actor-{self.name}", serve, there, self._recipe, simulators=simulators, begin=begin)
            except BaseException:
                simulators.close()
                raise
        self._line = Line(self.name, here)
        self._end = weakref.finalize(self, _end, child, simulators, here)

    def __repr__(self) -> str:
        return f"Actor({self.name})"


class RemoteMethods:
    """Methods of an actor that return futures."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def __getattr__(self, method: str) -> Callable[..., Future[Any]]:
        if method.startswith("__"):
            raise AttributeError(method)
        return partial(self._actor.call, method)


class Line:
    """Sends calls, and reads what comes back in a thread, so that neither side waits for the other to read."""

    def __init__(self, name: str, connection: Connection) -> None:
        """Begins to read."""
        self._name, self._connection, self._lock = name, connection, threading.Lock()
        self._pending: collections.deque[tuple[Future[Any], Any]] = collections.deque()
        """Calls under way, and what must stay alive for them."""
        self._is_over = False
        threading.Thread(target=self._read, name=f"answers of {name}", daemon=True).start()

    def send(self, call: bytes, sender: Any) -> Future[Any]:
        """Returns what will come back; the sender stays alive until then."""
        future: Future[Any] = Future()
        with self._lock:
            if self._is_over:
                raise UsageError(f"The actor {self._name} has ended. Make a new one.")
            self._pending.append((future, sender))
            with contextlib.suppress(OSError):  # its end is seen by the thread
                self._connection.send_bytes(call)
        return future

    def _read(self) -> None:
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._answer(self._connection.recv_bytes())
        finally:
            with self._lock:
                self._is_over = True
            for future, _ in self._pending:
                if future.set_running_or_notify_cancel():
                    future.set_exception(WorkerCrashed(f"The process of the actor {self._name} has ended."))
            self._pending.clear()

    def _answer(self, text: bytes) -> None:
        """The oldest call; nothing waits for one that was cancelled."""
        future, _ = self._pending.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            failure, result = cloudpickle.loads(text)
        except BaseException as error:
            failure = f"returned what cannot be unpickled here: {type(error).__name__}: {error}. Return plain data."
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(OperatorFailed(f"The actor {self._name} {failure}"))


def serve(tell: Callable[[Any], None], connection: Connection, recipe: bytes) -> None:
    """Makes the object, in its process, and carries out calls until there are no more."""
    make, arguments, named = cloudpickle.loads(recipe)
    found: list[Any] = []
    tell(Ready())
    with contextlib.suppress(EOFError, OSError):
        while True:
            call = connection.recv_bytes()
            try:
                if not found:  # so that the caller hears of an exception in the constructor
                    found.append(make(*arguments, **named))
                answer = cloudpickle.dumps((None, _carried_out(found[0], *cloudpickle.loads(call))))
            except StopIteration:
                answer = cloudpickle.dumps((None, END))
            except Exception as error:
                answer = cloudpickle.dumps((f"raised {type(error).__name__}: {error}", None))
            connection.send_bytes(answer)


def _carried_out(thing: Any, method: str, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    if method == "apply" and not hasattr(thing, "apply"):
        function, *others = arguments
        return function(thing, *others, **named)
    return getattr(thing, method)(*arguments, **named)


def _end(child: Child, simulators: Simulators, connection: Connection) -> None:
    child.kill()
    child.reap(KILL_GRACE_S)
    simulators.close()
    connection.close()
