"""A child process: started, watched, ended and reaped by one class, for any work.

Python's own ways of starting a process hand it what it is given through a pipe, and wait until that is read. A process
that was killed or stopped as it was born never reads it, and a pipe takes 64 KiB. So here a file without a name has the
place of the pipe: nothing waits, and its length does not matter.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import (
    connection,
    context,
    forkserver,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from typing import Any, NamedTuple

from sf.machine.limits import ensure_file_size
from sf.processes.failures import Failure, how_it_ended
from sf.processes.private import descriptor_class
from sf.processes.process import ChildJob, Ready
from sf.processes.simulators import Simulators, starting
from sf.processes.spare import Spare

STATUS_GRACE_S = 1.0
"""Time for the fork server to tell the exit code of a child that has ended."""
KILL_GRACE_S = 4.0
"""Time for the kernel to confirm a kill; a process in uninterruptible sleep is named and left to it."""


class Begun(NamedTuple):
    """A process that was started."""

    pid: int
    status: int | None = None
    """Descriptor from which its exit code is read, if the fork server is its parent."""

    def exit_code(self) -> int | None:
        """Reaps the process, which has ended; None if its parent does not tell."""
        if self.status is not None:
            try:
                if connection.wait([self.status], STATUS_GRACE_S):
                    return int(forkserver.read_signed(self.status))
            except EOFError:
                pass  # the fork server has died, and this process is the parent
            finally:
                os.close(self.status)
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return os.waitstatus_to_exitcode(status) if pid else None
        return None


Begin = Callable[[ChildJob], Begun]
"""Starts the process of a job."""


def is_our_command() -> bool:
    """Whether this program is a command of ours, whose arguments modules of users may take for their own on import."""
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None) or ""
    return spec.name.startswith("sf.cli.") if spec else os.path.basename(path) in COMMANDS


COMMANDS = {f"sf-{name}" for name in ("train", "eval", "enjoy", "plan", "bench", "sweep", "export", "hub")}
"""Commands of ours that have processes."""


class Packed:
    """A job as a file, and the descriptors in it; a context. Plays the started child while it packs."""

    def __init__(self, job: ChildJob, is_forked: bool = False, imports_script: bool = True) -> None:
        """Packs.

        Args:
            job: to be done by the new process.
            is_forked: descriptors have other numbers there.
            imports_script: whether the new process imports the script of the user first, as one that unpickles what is
                defined there has to.
        """
        self.descriptors: list[int] = []
        self._is_forked = is_forked
        self.DupFd = descriptor_class(is_forked)
        preparation = spawn.get_preparation_data(job.name) | {"start_method": "spawn"}
        if is_our_command():  # a script of the user's reads its own again
            preparation["sys_argv"] = sys.argv[:1]
        path = preparation.get("init_main_from_path")
        if not imports_script or (path is not None and not os.path.exists(path)):  # as of a program from standard input
            preparation = {key: value for key, value in preparation.items() if not key.startswith("init_main")}
        text = io.BytesIO()
        context.set_spawning_popen(self)  # type: ignore[arg-type]  # asks no more of it than what is here
        try:
            reduction.dump(preparation, text)
            reduction.dump(job, text)
        finally:
            context.set_spawning_popen(None)
        ensure_file_size(text.tell())
        self.file = os.memfd_create("sf-job")
        with open(self.file, "wb", closefd=False) as file:
            file.write(text.getbuffer())
        os.lseek(self.file, 0, os.SEEK_SET)  # for the reader, which shares the position

    def duplicate_for_child(self, descriptor: int) -> int:
        """Called while pickling."""
        self.descriptors.append(descriptor)
        return len(self.descriptors) - 1 if self._is_forked else descriptor

    def __enter__(self) -> Packed:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.file)


def spawned(job: ChildJob, imports_script: bool = True) -> Begun:
    """Starts a program of its own, which is Python again."""
    with Packed(job, imports_script=imports_script) as packed:
        tracker = resource_tracker.getfd()
        assert tracker is not None
        command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=packed.file)
        passed = [tracker, packed.file, *packed.descriptors]
        return Begun(util.spawnv_passfds(os.fsencode(spawn.get_executable()), command, passed))


def handed_to(spare: Spare, job: ChildJob) -> Begun:
    """Has a Python that waits for it do a job, which needs nothing of the script of the user."""
    with Packed(job, is_forked=True, imports_script=False) as packed:
        tracker = resource_tracker.getfd()
        assert tracker is not None
        spare.hand_over([packed.file, tracker, *packed.descriptors])
    return Begun(spare.pid)


class Child:
    """One process, from its start to its reaping, and its reports so far."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        simulators: Simulators,
        incarnation: int = 0,
        leads_group: bool = False,
        begin: Begin = spawned,
    ) -> None:
        """Starts it.

        Args:
            name: in the process list and in messages.
            function: at the top level of a module; called with a function that sends a message home, and the arguments.
            arguments: anything that can be sent to a process, shared memory and pipes included.
            simulators: keeps watch over what it starts.
            incarnation: of those with this name.
            leads_group: whether it has environments, which may start processes of their own.
            begin: starts the process, by default as a program of its own.
        """
        self.name = name
        self.is_ready = False
        self.failure: Failure | None = None
        self.exit_code: int | None = None
        """Once it was reaped; negative if a signal ended it."""
        self._simulators, self._mark = simulators, simulators.mark_of(name, incarnation)
        self.reports, child_end = multiprocessing.Pipe(duplex=False)
        self._begun: Begun | None = None
        self.pidfd = -1
        job = ChildJob(name, function, arguments, child_end, self._mark, leads_group)
        try:
            with starting(self._mark), child_end:
                self._begun = begin(job)
                self.pidfd = _readable_at_the_end_of(self.pid)
                if leads_group:
                    simulators.watch(self.pid)
        except BaseException:  # also a signal that has waited for the end of the start
            if self._begun is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            if self.pidfd >= 0:
                self.reap(KILL_GRACE_S)
            else:
                self.reports.close()
            raise

    @property
    def pid(self) -> int:
        assert self._begun is not None
        return self._begun.pid

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def waitables(self) -> list[Any]:
        """Readable when it reports or ends: processes that it has forked may hold the pipe open."""
        return [self.reports, self.pidfd]

    def hear(self) -> list[Any]:
        """Reads what it has reported, and returns what is not for this class."""
        messages = []
        try:
            while not self.reports.closed and self.reports.poll():
                message = self.reports.recv()
                if isinstance(message, Failure):
                    self.failure = message
                elif isinstance(message, Ready):
                    self.is_ready = True
                else:
                    messages.append(message)
        except (EOFError, OSError):
            pass  # its end tells the rest
        return messages

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether the process is no more, or not within so many seconds; it need not have been reaped."""
        return bool(connection.wait([self.pidfd], timeout=timeout_s))

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if not self.has_ended():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def reap(self, timeout_s: float = 0.0) -> None:
        """Kills what it has started, and takes note of its exit code; it has ended, or not even the kernel ends it."""
        if not self.has_ended(timeout_s):
            self._simulators.unkillable.add(self.pid)
        assert self._begun is not None
        self._simulators.end_of(self.pid, self._mark, is_reaped=self._begun.status is not None)
        self.exit_code = self._begun.exit_code()
        self.reports.close()
        os.close(self.pidfd)

    def how_it_ended(self) -> str:
        """As a sentence without its end."""
        return f"{self} {how_it_ended(self.exit_code)}"


def _readable_at_the_end_of(pid: int) -> int:
    """A pidfd, or what reads like that of an ended process if a fork server has reaped this one already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return os.eventfd(1)
