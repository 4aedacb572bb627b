"""A process that has loaded torch and forks the roles that need it.

Loading torch takes about two seconds of a core, and a fork a few milliseconds. Processes with environments do not come
from here: they do without torch, and what the libraries of an environment think of a fork, nobody knows.

What is forked is a child of the supervisor and not of the fork server, which forks twice: the process in between ends
at once, and the supervisor, their subreaper, becomes the parent. So it dies with the supervisor, is waited for by the
supervisor, and does not care what becomes of the fork server.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, spawn
from multiprocessing.context import SpawnProcess
from typing import Any, NoReturn

import numpy as np

from sf.errors import ExitCode, RestartsSpent, WorkerCrashed
from sf.processes.parcel import Parcel, opened, receive
from sf.processes.process import (
    Failure,
    as_exception,
    end_with_parent,
    failure_of,
    leave,
    leave_signals_to_parent,
    set_title,
    stop_signals_blocked,
    take_mark,
)
from sf.processes.restarts import Restarts
from sf.processes.simulators import Simulators, starting
from sf.processes.spawning import spawned

NAME = "fork-server"
LOADED_BEFORE = "sf.learner.worker", "sf.inference.worker", "sf.inference.network_actor"
"""Modules that most children need."""
INIT_S = 120.0
"""Longest time to load them."""
BIRTH_S = 4.0
"""Longest time from a request to the process; a fork server that takes longer has been stopped."""
KILL_GRACE_S = 4.0
"""Time for the kernel to confirm a kill."""


class ForkServer:
    """Serves one run, restarts of its learner included; a context. It takes a while to be ready."""

    def __init__(self, max_restarts: int) -> None:
        """Starts nothing yet.

        Args:
            max_restarts: how often within a minute, or in a row without a fork, it may be replaced.
        """
        self.simulators: Simulators | None = None
        """Of the run, once it has processes."""
        self.is_ready = self._was_ready = False
        self._has_forked = False
        self._restarts = Restarts(max_restarts)
        self._process: SpawnProcess | None = None

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        with stop_signals_blocked():
            self._end()
            if self.simulators is not None:
                self.simulators.close()

    @property
    def pid(self) -> int | None:
        """None if there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Begins to load, unless that has begun."""
        if self._process is not None:
            return
        self.simulators = self.simulators or Simulators()  # also makes this process the parent of what is forked
        mark = self.simulators.mark_of(NAME, self._restarts.total)
        self._deadline_s = time.monotonic() + INIT_S
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = spawned(_serve, theirs, os.getpid(), name=NAME)
        try:
            with starting(mark), _without_main(), theirs:
                process.start()
                assert process.pid is not None
                self._pidfd = os.pidfd_open(process.pid)
                self._process = process
        except BaseException:
            if process.pid is not None:
                process.kill()
            self._socket.close()
            raise

    def waitables(self) -> list[int]:
        """What becomes readable when it is ready, or has ended; nothing if there is none."""
        return [] if self._process is None else [self._socket.fileno()]

    def look(self) -> None:
        """Takes note, without waiting, of whether it is ready or has died; the next fork replaces a dead one.

        Raises:
            SfError: it could not load torch.
        """
        if self._process is None:
            return
        if not connection.wait([self._socket], timeout=0.0):
            if not self.is_ready and time.monotonic() > self._deadline_s:
                raise WorkerCrashed(f"The {NAME} did not load torch within {INIT_S:g} s. Try python -c 'import torch'.")
            return
        message = self._receive()
        if isinstance(message, Failure):
            raise as_exception(message, f"The {NAME}")
        if message is not None:
            self.is_ready = self._was_ready = True
        elif self.is_ready:
            self._end()
        elif self._was_ready:
            self._replace()
        else:
            raise WorkerCrashed(f"The {NAME} died while it loaded torch. Try python -c 'import torch'.")

    def fork(self, name: str, mark: str, function: Callable[..., Any], *arguments: Any) -> ForkedProcess | None:
        """Has a child of this process call `function(*arguments)` and end; None if the server is not ready.

        Args:
            name: of the process.
            mark: of what it starts, see `sf.processes.simulators`.
            function: at the top level of a module, like everything it is given.
            arguments: of the function.

        Raises:
            OSError: the kernel refuses another process.
            RestartsSpent: the server died too often.
        """
        if self._process is None:
            self._replace()
        if not self.is_ready:
            return None
        # What this process does not accept never runs: a second one may have been born in its place.
        permission, permit = multiprocessing.Pipe(duplex=False)
        with permission, permit:
            pid = self._born(Parcel((mark, spawn.get_preparation_data(name), permission), (function, arguments)))
            if pid is None:
                self._replace()
                return None
            process = ForkedProcess(pid)
            permit.send(pid)
        self._has_forked = True
        return process

    def _born(self, parcel: Parcel) -> int | None:
        """The process that the server forks; None if it cannot any more."""
        assert self._process is not None
        assert self._process.pid is not None
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)  # which may have been raised after the server was started
        try:
            with contextlib.suppress(PermissionError):  # then what is too much for it ends it
                resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, limit)
            parcel.send(self._socket)
        except (BrokenPipeError, ConnectionResetError, ProcessLookupError):
            return None
        answer = self._receive() if connection.wait([self._socket], timeout=BIRTH_S) else None
        if isinstance(answer, OSError):
            raise answer
        return answer

    def _replace(self) -> None:
        self._end()
        if self._restarts.delay_s(time.monotonic(), delivered=self._has_forked) is None:
            raise RestartsSpent(f"The {NAME}, which loads torch, died again and again. Try python -c 'import torch'.")
        self._has_forked = False
        self.start()

    def _end(self) -> None:
        """Its children do not notice."""
        if self._process is not None:
            self._process.kill()
            has_ended = connection.wait([self._pidfd], KILL_GRACE_S)  # the sentinel waits for the children as well
            if not has_ended and self.simulators is not None and self._process.pid is not None:
                self.simulators.unkillable.add(self._process.pid)
            self._process.exitcode  # noqa: B018  (reaps it)
            multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]  # the exit would wait
            os.close(self._pidfd)
            self._socket.close()
        self._process, self.is_ready = None, False

    def _receive(self) -> Any:
        """A message; None at the end of the process."""
        try:
            message = self._socket.recv(2**20)
        except OSError:
            return None
        return pickle.loads(message) if message else None


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Inside the block a child that is started does not import the script of the user; what is forked from it does.

    The script may begin what no fork survives, on an accelerator for instance.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class ForkedProcess:
    """A child of this process that it has not started itself."""

    def __init__(self, pid: int) -> None:
        self.pid, self.pidfd = pid, os.pidfd_open(pid)
        self._exit_code: int | None = None

    def kill(self) -> None:
        """Sends SIGKILL, unless it has been reaped."""
        if self._exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    @property
    def exitcode(self) -> int | None:
        """None while it lives; then it is reaped. Negative if a signal ended it."""
        if self._exit_code is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code


def _serve(requests: socket.socket, supervisor_pid: int) -> None:
    """The main function of the fork server."""
    end_with_parent(supervisor_pid)
    set_title(NAME)
    leave_signals_to_parent()
    try:
        gc.disable()  # hardly anything that modules make is garbage
        for module in LOADED_BEFORE:
            importlib.import_module(module)
        gc.collect()
        sys.stdout.flush()  # else every child would print it again
        gc.freeze()  # what the collector does not look at stays one copy for all
        gc.enable()
        answer: str | Failure = NAME
    except BaseException as error:
        answer = failure_of(error)
    with contextlib.suppress(OSError):  # nobody is there any more
        requests.send(pickle.dumps(answer))
        while answer == NAME and (descriptors := receive(requests)):
            _fork_twice(requests, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
    leave(ExitCode.FINISHED)


def _fork_twice(requests: socket.socket, descriptors: Sequence[int]) -> None:
    """Says which process came of it. The one in between ends, so that the supervisor becomes the parent."""
    try:
        between = os.fork()
    except OSError as error:
        requests.send(pickle.dumps(error))
        return
    if between:
        with contextlib.suppress(ChildProcessError):  # the kernel reaps by itself where SIGCHLD is ignored
            os.waitpid(between, 0)
        return
    between = os.getpid()
    answer: int | OSError
    try:
        answer = os.fork()
    except OSError as error:
        answer = error
    if answer == 0:
        requests.close()
        _live(descriptors, between)
    with contextlib.suppress(OSError):  # then nobody permits the child to live either
        requests.send(pickle.dumps(answer))
    os._exit(0)


def _live(descriptors: Sequence[int], between: int) -> NoReturn:
    """What a newborn process does: the same as one that is spawned."""
    contents = opened(descriptors)
    try:
        mark, preparation, permission = next(contents)
        with permission:
            permission.recv()
    except BaseException:
        os._exit(ExitCode.INTERNAL)  # the supervisor does not know this process
    while os.getppid() == between:
        time.sleep(0.0005)
    try:
        np.random.seed()
        take_mark(mark)
        own = vars(multiprocessing.current_process())
        own["_inheriting"] = True  # as the standard library says while it imports the script of the user
        spawn.prepare(preparation)
        function, arguments = next(contents)
        del own["_inheriting"]
        multiprocessing.set_start_method("spawn", force=True)
        contents.close()
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        leave(ExitCode.INTERNAL)
    leave(ExitCode.FINISHED)
