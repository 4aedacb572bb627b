"""Processes that have loaded what others need, and fork them: Python's own fork server in a child of ours.

A new Python takes about half a second of a core until it has loaded what steps environments, and two until it has
loaded torch. A fork takes some milliseconds. A run has one server of each kind. Both begin before any code of the user,
which is imported by their forks.

A server is the parent of its forks, which the kernel kills when it dies. With that of networks the run ends. What the
one of environments had forked is replaced as any dead worker, by programs of their own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any

from sf.errors import LearnerLost, SfError, WorkerCrashed
from sf.machine.limits import as_refusal
from sf.machine.loading import load
from sf.processes.child import KILL_GRACE_S, Begun, Child, Packed, handed_to, spawned
from sf.processes.failures import as_exception, how_it_ended
from sf.processes.process import ChildJob, Ready
from sf.processes.simulators import Simulators
from sf.processes.spare import MODULES, NETWORKS, Spares, pages_for

INIT_S = 120.0
"""Longest time to load."""
BIRTH_S = 4.0
"""Longest time from a request to the process; a fork server that takes longer has been stopped."""
LAST_WORDS_S = 0.5
"""Time for one that has failed to say why."""
MOST_DESCRIPTORS = 240
"""In one request; the kernel takes 253, and some are the server's own. A job with more becomes a program of its own."""


class ForkServer:
    """One of them, restarts included. It takes a while to be ready."""

    def __init__(self, name: str, spares: Spares) -> None:
        """Starts nothing yet.

        Args:
            name: of what it loads, and in the process list.
            spares: one of which becomes the server.
        """
        self.name = name
        self.child: Child | None = None
        self._spares = spares
        self._address = -1

    @property
    def is_ready(self) -> bool:
        return self.child is not None and self.child.is_ready

    def start(self, simulators: Simulators) -> None:
        """Begins to load, unless that has begun; `simulators` watches over it."""
        if self.child is not None:
            return
        self.simulators = simulators
        self._deadline_s = time.monotonic() + INIT_S
        listener, self._address = _nameless_listener()
        with listener, contextlib.closing(self._spares.take(self.name)) as spare:  # closed unless it is handed the job
            begin = partial(handed_to, spare)
            self.child = Child(self.name, _serve, listener, MODULES[self.name], simulators=simulators, begin=begin)

    def waitables(self) -> list[Any]:
        """Readable when it is ready or has ended; nothing if there is none."""
        return [] if self.child is None else self.child.waitables()

    def look(self) -> None:
        """Takes note, without waiting, of whether it is ready or has ended.

        Raises:
            SfError: it has ended, or cannot load.
        """
        if (child := self.child) is None:
            return
        child.hear()
        if child.has_ended():
            raise self._lost()
        if not child.is_ready and time.monotonic() > self._deadline_s:
            raise WorkerCrashed(f"The {self.name} did not load {self._needs} within {INIT_S:g} s. {self._try_it}")

    def begin(self, job: ChildJob, imports_script: bool = True) -> Begun:
        """Has the server fork a process for a job.

        Args:
            job: of the process.
            imports_script: whether it imports the script of the user.

        Raises:
            SfError: it has died, does not answer, or the kernel refuses another process.
        """
        assert self.child is not None
        job.parent_pid = self.child.pid
        with Packed(job, is_forked=True, imports_script=imports_script) as packed:
            if len(packed.descriptors) > MOST_DESCRIPTORS:
                job.parent_pid = os.getpid()
                with pages_for(self.name):
                    return spawned(job, imports_script)
            status, their_status = os.pipe()
            with socket.socket(
                socket.AF_UNIX
            ) as client:  # open until the answer: since Python 3.14 the server confirms
                try:
                    self._request(client, packed, their_status)
                except (ConnectionError, ProcessLookupError):
                    pass  # so that no answer comes
                finally:
                    os.close(their_status)
                try:
                    if connection.wait([status], BIRTH_S if self.is_ready else INIT_S):
                        return Begun(forkserver.read_signed(status), status)
                    why = f"did not answer within {BIRTH_S:g} s"
                except EOFError:
                    why = f"died before it had forked {job.name}"
        os.close(status)
        raise self._lost(why)

    @property
    def _needs(self) -> str:
        return "torch" if self.name == NETWORKS else "gymnasium"

    @property
    def _try_it(self) -> str:
        return f"Try python -c 'import {self._needs}'."

    def _lost(self, why: str = "") -> SfError:
        """Ends what is left of it; returns the error that says what became of it."""
        child = self.child
        assert child is not None
        child.has_ended(LAST_WORDS_S)
        child.hear()
        self.end()
        if child.failure is not None:
            return as_exception(child.failure, f"The {child}")
        if child.is_ready:
            why = why or how_it_ended(child.exit_code)
            return LearnerLost(f"The {child} {why}, and every process that it had forked ends with it.")
        return WorkerCrashed(f"The {self.name} died while it loaded {self._needs}. {self._try_it}")

    def _request(self, client: socket.socket, packed: Packed, status: int) -> None:
        assert self.child is not None
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)  # which may have been raised after the server was started
        with contextlib.suppress(PermissionError):  # then too many descriptors end it
            resource.prlimit(self.child.pid, resource.RLIMIT_NOFILE, limit)
        tracker = resource_tracker.getfd()
        assert tracker is not None
        descriptors = [packed.file, status, tracker, tracker, *packed.descriptors]  # no pipe keeps the server alive
        client.connect(f"/proc/self/fd/{self._address}")
        socket.send_fds(client, [bytes([len(descriptors)])], descriptors)

    def end(self) -> None:
        """Ends it, and its forks with it."""
        if self.child is not None:
            self.child.kill()
            self.child.reap(KILL_GRACE_S)
            os.close(self._address)
            self.child = None


def _nameless_listener() -> tuple[socket.socket, int]:
    """A socket for requests, and a descriptor that leads to it: no other user finds it, and nothing is left of it."""
    with tempfile.TemporaryDirectory(prefix="sf-") as folder:
        inside, listener = os.open(folder, os.O_PATH), socket.socket(socket.AF_UNIX)
        try:
            listener.bind(f"/proc/self/fd/{inside}/requests")  # the way to the folder may be too long for an address
            address = os.open("requests", os.O_PATH, dir_fd=inside)
        finally:
            os.close(inside)
    listener.listen()
    return listener, address


def _serve(tell: Callable[[Any], None], listener: socket.socket, modules: Sequence[str]) -> None:
    load(modules)  # the spare has done so, and has kept to itself what was wrong
    sys.stdout.flush()  # else every fork would print it again
    gc.freeze()  # what the collector does not look at stays one copy for all
    tell(Ready())
    never = os.eventfd(0)  # has the place of a pipe from the supervisor: its end is seen by the kernel
    try:
        forkserver.main(listener.detach(), never, [])
    except OSError as error:
        raise as_refusal(error) or error from None
