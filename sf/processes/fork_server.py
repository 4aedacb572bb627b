"""A process that has loaded torch and forks the roles that need it: the fork server of Python in a child of ours.

Loading torch takes about two seconds of a core, and a fork a few milliseconds. Processes with environments do not come
from here: they do without torch, and libraries of environments may not survive a fork.

The server is the parent of its forks, which the kernel kills when it dies. So its end is the end of the run.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
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
from sf.machine.memory import huge_pages
from sf.processes.child import KILL_GRACE_S, Begun, Child, Packed, spawned
from sf.processes.failures import as_exception, how_it_ended
from sf.processes.process import ChildJob, Ready, stop_signals_blocked
from sf.processes.simulators import Simulators

NAME = "fork-server"
LOADED_BEFORE = "sf.learner.worker", "sf.inference.worker", "sf.inference.network_actor"
"""Modules that most children need."""
INIT_S = 120.0
"""Longest time to load them."""
BIRTH_S = 4.0
"""Longest time from a request to the process; a fork server that takes longer has been stopped."""
LAST_WORDS_S = 0.5
"""Time for one that has failed to say why."""
MOST_DESCRIPTORS = 240
"""In one request; the kernel takes 253, and some are the server's own. A job with more becomes a program of its own."""


class ForkServer:
    """Serves one run, restarts of its learner included; a context. It takes a while to be ready."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self.simulators: Simulators | None = None
        """The orphan reaper of the run, once it has processes."""
        self.child: Child | None = None
        self._address = -1

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        with stop_signals_blocked():
            self._end()
            if self.simulators is not None:
                self.simulators.close()

    @property
    def is_ready(self) -> bool:
        return self.child is not None and self.child.is_ready

    def start(self) -> None:
        """Begins to load, unless that has begun."""
        if self.child is not None:
            return
        self.simulators = self.simulators or Simulators()
        self._deadline_s = time.monotonic() + INIT_S
        listener, self._address = _nameless_listener()
        with listener:
            # The script of the user may begin what no fork survives, on an accelerator for instance; forks import it.
            self.child = Child(
                NAME,
                _serve,
                listener,
                LOADED_BEFORE,
                simulators=self.simulators,
                begin=partial(_spawned, imports_script=False),
            )

    def waitables(self) -> list[Any]:
        """Readable when it is ready or has ended; nothing if there is none."""
        return [] if self.child is None else self.child.waitables()

    def look(self) -> None:
        """Takes note, without waiting, of whether it is ready or has ended.

        Raises:
            SfError: it has ended, or cannot load torch.
        """
        if (child := self.child) is None:
            return
        child.hear()
        if child.has_ended():
            raise self._lost()
        if not child.is_ready and time.monotonic() > self._deadline_s:
            raise WorkerCrashed(f"The {NAME} did not load torch within {INIT_S:g} s. Try python -c 'import torch'.")

    def begin(self, job: ChildJob) -> Begun:
        """Has the server, which is ready, fork a process for a job.

        Raises:
            SfError: it has died, does not answer, or the kernel refuses another process.
        """
        assert self.child is not None
        job.parent_pid = self.child.pid
        with Packed(job, is_forked=True) as packed:
            if len(packed.descriptors) > MOST_DESCRIPTORS:
                job.parent_pid = os.getpid()
                return _spawned(job)
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
                    if connection.wait([status], BIRTH_S):
                        return Begun(forkserver.read_signed(status), status)
                    why = f"did not answer within {BIRTH_S:g} s"
                except EOFError:
                    why = f"died before it had forked {job.name}"
        os.close(status)
        raise self._lost(why)

    def _lost(self, why: str = "") -> SfError:
        """Ends what is left of it; returns the error that says what became of it."""
        child = self.child
        assert child is not None
        child.has_ended(LAST_WORDS_S)
        child.hear()
        self._end()
        if child.failure is not None:
            return as_exception(child.failure, f"The {child}")
        if child.is_ready:
            why = why or how_it_ended(child.exit_code)
            return LearnerLost(f"The {child} {why}, and every process that it had forked ends with it.")
        return WorkerCrashed(f"The {NAME} died while it loaded torch. Try python -c 'import torch'.")

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

    def _end(self) -> None:
        """Its forks end as well."""
        if self.child is not None:
            self.child.kill()
            self.child.reap(KILL_GRACE_S)
            os.close(self._address)
            self.child = None


def _spawned(job: ChildJob, imports_script: bool = True) -> Begun:
    """Starts a program of its own that works on large tensors, or whose forks do."""
    with huge_pages():
        return spawned(job, imports_script)


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
    gc.disable()  # hardly anything that modules make is garbage
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    sys.stdout.flush()  # else every fork would print it again
    gc.freeze()  # what the collector does not look at stays one copy for all
    gc.enable()
    tell(Ready())
    never = os.eventfd(0)  # has the place of a pipe from the supervisor: its end is seen by the kernel
    try:
        forkserver.main(listener.detach(), never, [])
    except OSError as error:
        raise as_refusal(error) or error from None
