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
import io
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection, context, reduction
from typing import Any, NoReturn

from sf.errors import ExitCode, WorkerCrashed
from sf.limits import one_thread_each
from sf.process import (
    Failure,
    as_exception,
    end_with_parent,
    failure_of,
    leave,
    leave_signals_to_parent,
    set_title,
    stop_signals_blocked,
)
from sf.simulators import marked

NAME = "fork-server"
LOADED_BEFORE = "sf.learner.worker", "sf.inference.worker"
"""Modules that most children need."""
INIT_S = 120.0
"""Longest time to load them."""
BIRTH_S = 10.0
"""Longest time from a request to the process; a fork server that takes longer has been stopped."""
MOST_DESCRIPTORS = 200
"""In one message; the kernel takes 253."""
_NUMBERS = struct.Struct("=q")


class ForkServer:
    """Held by the supervisor. It takes a while to be ready; its file descriptor becomes readable then."""

    def __init__(self, mark: str) -> None:
        """Starts to load; the caller must be a subreaper.

        Args:
            mark: what its children have in their environment variables, too.
        """
        self._deadline_s = time.monotonic() + INIT_S
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        spawning = multiprocessing.get_context("spawn")
        self._process = spawning.Process(target=_serve, args=(theirs, os.getpid()), name=NAME)
        with stop_signals_blocked(), one_thread_each(), marked(mark), theirs:
            self._process.start()
        self.is_ready = False

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def fileno(self) -> int:
        """Readable when it is ready, or has ended."""
        return self._socket.fileno()

    def look(self) -> bool:
        """Whether it lives, as far as is known without waiting; says in `is_ready` whether it can fork.

        Raises:
            SfError: it could not load what it needs.
        """
        if not connection.wait([self._socket], timeout=0.0):
            if not self.is_ready and time.monotonic() > self._deadline_s:
                raise WorkerCrashed(f"The {NAME} did not load torch within {INIT_S:g} s. Try python -c 'import torch'.")
            return True
        message = self._receive()
        if message is None and not self.is_ready:
            raise WorkerCrashed(f"The {NAME} died while it loaded torch. Try python -c 'import torch'.")
        if isinstance(message, Failure):
            raise as_exception(message, f"The {NAME}")
        self.is_ready = message is not None
        return self.is_ready

    def fork(self, function: Callable[..., Any], *arguments: Any) -> ForkedProcess | None:
        """Has a child of this process call `function(*arguments)` and end; None if the server cannot fork any more.

        Raises:
            OSError: the kernel refuses another process.
        """
        parcel = _Parcel((function, arguments))
        try:
            parcel.send(self._socket)
        except OSError:
            return None
        answer = self._receive() if connection.wait([self._socket], timeout=BIRTH_S) else None
        if isinstance(answer, OSError):
            raise answer
        return None if answer is None else ForkedProcess(answer)

    def close(self) -> None:
        """Ends it; its children do not notice."""
        self._socket.close()
        self._process.kill()
        self._process.join()

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


class _Parcel:
    """Something pickled, with the file descriptors in it. In the meantime it plays the process being started."""

    def __init__(self, content: Any) -> None:
        self._descriptors: list[int] = []
        text = io.BytesIO()
        context.set_spawning_popen(self)  # type: ignore[arg-type]  # asks no more of it than what is here
        try:
            reduction.dump(content, text)
        finally:
            context.set_spawning_popen(None)
        self._text = text.getvalue()

    def duplicate_for_child(self, descriptor: int) -> int:
        """Called while pickling; returns what stands for the descriptor."""
        self._descriptors.append(descriptor)
        return len(self._descriptors) - 1

    @staticmethod
    def DupFd(index: int) -> _Received:
        """Called while pickling; what the other side finds in place of the descriptor."""
        return _Received(index)

    def send(self, to: socket.socket) -> None:
        """The text travels as a file, so that a large one does not wait for its reader."""
        file = os.memfd_create(NAME)
        try:
            with open(file, "wb", closefd=False) as text:
                text.write(self._text)
            descriptors = [file, *self._descriptors]
            for start in range(0, len(descriptors), MOST_DESCRIPTORS):
                some = descriptors[start : start + MOST_DESCRIPTORS]
                socket.send_fds(to, [_NUMBERS.pack(len(descriptors))], some)
        finally:
            os.close(file)

    @staticmethod
    def receive(sender: socket.socket) -> list[int]:
        """The descriptors, that of the text first; empty at the end of the sender."""
        descriptors: list[int] = []
        while True:
            number, some, _, _ = socket.recv_fds(sender, _NUMBERS.size, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            if not number:
                return []
            descriptors += some
            if len(descriptors) == _NUMBERS.unpack(number)[0]:
                return descriptors

    @staticmethod
    def open(descriptors: Sequence[int]) -> Any:
        """What was sent; it owns its descriptors."""
        _Received.descriptors = list(descriptors[1:])
        with open(descriptors[0], "rb") as text:
            text.seek(0)
            return pickle.load(text)


class _Received:
    """Stands for a file descriptor in what is pickled."""

    descriptors: Sequence[int] = ()

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        return self.descriptors[self._index]


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
    while descriptors := _Parcel.receive(requests):
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
    function, arguments = _Parcel.open(descriptors)
    function(*arguments)
    leave(ExitCode.FINISHED)
