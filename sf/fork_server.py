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
import signal
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from typing import Any, NoReturn

from sf.errors import ExitCode, RestartsSpent, WorkerCrashed
from sf.parcel import Parcel, opened, receive
from sf.process import (
    Failure,
    as_exception,
    end_with_parent,
    failure_of,
    leave,
    leave_signals_to_parent,
    set_title,
)
from sf.restarts import Restarts
from sf.simulators import Simulators, starting

NAME = "fork-server"
LOADED_BEFORE = "sf.learner.worker", "sf.inference.worker"
"""Modules that most children need."""
INIT_S = 120.0
"""Longest time to load them."""
KILL_GRACE_S = 5.0
"""Time for the kernel to confirm a kill."""
BIRTH_S = 10.0
"""Longest time from a request to the process; a fork server that takes longer has been stopped."""


class ForkServer:
    """Serves one run, restarts of its learner included; a context. It takes a while to be ready."""

    def __init__(self, max_restarts: int) -> None:
        """Starts nothing yet.

        Args:
            max_restarts: how often within a minute it may die.
        """
        self.simulators: Simulators | None = None
        """Of the run, once it has processes."""
        self.is_ready = self._was_ready = False
        self._restarts = Restarts(max_restarts)
        self._process: SpawnProcess | None = None

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        if self.simulators is not None:
            self.simulators.close()

    @property
    def pid(self) -> int | None:
        """None if it has not been started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Begins to load, unless it has been started."""
        if self._process is not None:
            return
        self.simulators = self.simulators or Simulators()  # also makes this process the parent of what is forked
        self._deadline_s = time.monotonic() + INIT_S
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, os.getpid()), name=NAME)
        with starting(self.simulators.mark_of(NAME, self._restarts.total)), theirs:
            process.start()
        self._process = process

    def fileno(self) -> int:
        """Readable when it is ready, or has ended."""
        return self._socket.fileno()

    def look(self) -> None:
        """Takes note, without waiting, of whether it is ready, and starts it again if it has died.

        Raises:
            SfError: it could not load torch, or died too often.
        """
        if not connection.wait([self._socket], timeout=0.0):
            if not self.is_ready and time.monotonic() > self._deadline_s:
                raise WorkerCrashed(f"The {NAME} did not load torch within {INIT_S:g} s. Try python -c 'import torch'.")
            return
        message = self._receive()
        if isinstance(message, Failure):
            raise as_exception(message, f"The {NAME}")
        if message is None and not self._was_ready:
            raise WorkerCrashed(f"The {NAME} died while it loaded torch. Try python -c 'import torch'.")
        if message is None:
            self._start_again()
        else:
            self.is_ready = self._was_ready = True

    def fork(self, function: Callable[..., Any], *arguments: Any) -> ForkedProcess | None:
        """Has a child of this process call `function(*arguments)` and end; None if the server is not ready.

        Raises:
            OSError: the kernel refuses another process.
            RestartsSpent: the server died too often.
        """
        if not self.is_ready:
            return None
        parcel, answer = Parcel((function, arguments)), None
        with contextlib.suppress(OSError):
            parcel.send(self._socket)
            if connection.wait([self._socket], timeout=BIRTH_S):
                answer = self._receive()
        if isinstance(answer, OSError):
            raise answer
        if answer is None:
            self._start_again()
            return None
        return ForkedProcess(answer)

    def _end(self) -> None:
        """Its children do not notice."""
        if self._process is not None:
            self._socket.close()
            self._process.kill()
            self._process.join(KILL_GRACE_S)
        self._process, self.is_ready = None, False

    def _start_again(self) -> None:
        self._end()
        if self._restarts.delay_s(time.monotonic(), delivered=False) is None:
            raise RestartsSpent(f"The {NAME}, which loads torch, died again and again. Try python -c 'import torch'.")
        self.start()

    def _receive(self) -> Any:
        """A message; None at the end of the process."""
        try:
            message = self._socket.recv(2**20)
        except OSError:
            return None
        return pickle.loads(message) if message else None


class ForkedProcess:
    """A child of this process that it has not started itself."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
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
        for module in LOADED_BEFORE:
            importlib.import_module(module)
    except BaseException as error:
        requests.send(pickle.dumps(failure_of(error)))
        leave(ExitCode.INTERNAL)
    gc.collect()
    gc.freeze()  # what the collector does not look at stays one copy for all
    requests.send(pickle.dumps(NAME))
    while descriptors := receive(requests):
        try:
            between = os.fork()
        except OSError as error:
            requests.send(pickle.dumps(error))
        else:
            if between == 0:
                _bear(requests, descriptors)
            os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)
    leave(ExitCode.FINISHED)


def _bear(requests: socket.socket, descriptors: Sequence[int]) -> NoReturn:
    """Forks once more, says which process came of it, and ends, so that the supervisor becomes its parent."""
    between = os.getpid()
    answer: int | OSError
    try:
        answer = os.fork()
    except OSError as error:
        answer = error
    if answer:
        try:
            requests.send(pickle.dumps(answer))
        except OSError:  # nobody waits for it any more
            if isinstance(answer, int):
                os.kill(answer, signal.SIGKILL)
        os._exit(0)
    requests.close()
    while os.getppid() == between:
        time.sleep(0.0005)
    function, arguments = opened(descriptors)
    function(*arguments)
    leave(ExitCode.FINISHED)
