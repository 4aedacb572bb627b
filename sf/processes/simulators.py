"""Processes that children start: simulators, servers, compilers. They must not outlive the child they belong to.

Every child is born with a mark among its environment variables, or takes it when it is forked; all that it starts
inherits it. A child with environments leads a process group as well. When a child ends, its group is killed, and so is
everything with its mark: orphans come to the supervisor, because it is a subreaper. At the end of the run everything
with the mark of the run is killed. If the supervisor itself is killed, `sf.processes.watchdog` does that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Set
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

from sf.machine.kernel import ensure_linux
from sf.machine.limits import one_thread_each
from sf.machine.variables import variables
from sf.processes import watchdog
from sf.processes.ties import MARK, stop_signals_blocked

QUIET_LOOKS = 2
"""In a row that find no process; a single one can miss a process that is being born."""
LEAST_PASSES = 3
"""Allowed however long a machine that stands still takes for them; more while there is time."""
LONGEST_CLEANING_S = 2.0
LAST_BREATH_S = 0.5
"""Time for all orphans that are killed in one pass."""
UNWATCHED = (
    "Warning: the watchdog has ended, and no other one can be started now ({}). Without one, what environments have "
    "started outlives a SIGKILL of this process."
)

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class Simulators:
    """Held by the supervisor while a run has processes."""

    def __init__(self) -> None:
        """Begins to watch.

        Raises:
            ResourceError: the system is not Linux.
        """
        ensure_linux()
        self.run = uuid.uuid4().hex
        self._watchdog = self._new_watchdog()
        self._subreaper = Subreaper()
        self._groups: set[int] = set()
        self._daemons: set[int] = set()
        self.unkillable: set[int] = set()
        """Pids of children that not even the kernel has ended; no process waits for them any more."""
        self._why_unwatched = ""
        """No watchdog could be started in the place of one that has ended; told already."""

    def _new_watchdog(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), f"{MARK}={self.run}"]
        with stop_signals_blocked():  # until it ignores them
            return subprocess.Popen(command, stdin=subprocess.PIPE)

    def mark_of(self, name: str, incarnation: int) -> str:
        """The mark in the environment of every process that one child starts."""
        return f"{self.run}/{incarnation}/{name}."

    def watch(self, group: int) -> None:
        """Remembers the process group of a new child."""
        self._groups.add(group)

    def end_of(self, pid: int, mark: str, is_reaped: bool) -> None:
        """Kills what a child has started that has ended.

        Until the leader of a group is reaped, no other group has its number. A fork server reaps at once, and then only
        descendants are killed.
        """
        group = pid if pid in self._groups else None
        self._groups.discard(pid)
        if group is not None and not is_reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        kill_marked(mark, group, {pid})

    def reap(self) -> str:
        """Reaps orphans of living children that have ended by themselves, and replaces a watchdog that has.

        Returns a warning if that is not possible now.
        """
        for group in self._groups:
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                    if ended.si_pid == group:
                        break  # the leader itself, whose end is not dealt with here
                    os.waitpid(ended.si_pid, os.WNOHANG)
        session, mark = os.getsid(0), f"{MARK}={self.run}"
        for child in psutil.Process().children():  # those that have left the session, by the mark that they had alive
            with contextlib.suppress(OSError, psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE:
                    if os.getsid(child.pid) != session and watchdog.is_marked(child.pid, mark):
                        self._daemons.add(child.pid)
                elif child.pid in self._daemons:
                    self._daemons.discard(child.pid)
                    os.waitpid(child.pid, os.WNOHANG)
        return self._replace_watchdog() if self._watchdog.poll() is not None else ""

    def _replace_watchdog(self) -> str:
        told, self._why_unwatched = self._why_unwatched, ""
        try:
            dead, self._watchdog = self._watchdog, self._new_watchdog()
        except OSError as error:
            self._why_unwatched = str(error)
            return "" if told == str(error) else UNWATCHED.format(error)
        assert dead.stdin is not None
        dead.stdin.close()
        return ""

    def close(self) -> None:
        """Kills what is left of the run, whose children have been reaped, and ends the watchdog."""
        kill_marked(self.run, spared=self.unkillable)
        try:
            self._watchdog.communicate(b"done", timeout=5.0)
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            self._watchdog.wait()
        self._subreaper.close()


class Subreaper:
    """Makes this process the parent of the orphans among its descendants, until all holders have closed theirs."""

    holders = 0
    before = ctypes.c_int()

    def __init__(self) -> None:
        if Subreaper.holders == 0:
            ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(Subreaper.before), 0, 0, 0)
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        Subreaper.holders += 1

    def close(self) -> None:
        Subreaper.holders -= 1
        if Subreaper.holders == 0:
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, Subreaper.before.value, 0, 0, 0)


def kill_marked(mark: str, group: int | None = None, spared: Set[int] = frozenset()) -> None:
    """Kills and reaps descendants whose mark begins so, or that are in a group, until none is left: some give birth.

    Those that are spared have ended, or not even the kernel ends them.
    """
    deadline, passes, quiet = time.monotonic() + LONGEST_CLEANING_S, 0, 0
    dying: set[psutil.Process] = set()  # a dead process has no mark, and is to be reaped all the same
    while quiet < QUIET_LOOKS and (passes < LEAST_PASSES or time.monotonic() < deadline):
        left = set()
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                in_group = os.getpgid(child.pid) == group
                if child.pid not in spared and (in_group or watchdog.is_marked(child.pid, f"{MARK}={mark}")):
                    left.add(child)
                    child.kill()
        passes, quiet = (passes + 1, 0) if left else (passes, quiet + 1)
        dying = set(psutil.wait_procs(dying | left, timeout=LAST_BREATH_S)[1])


@contextlib.contextmanager
def marked(mark: str) -> Iterator[None]:
    """Inside the block everything that this process starts inherits the mark."""
    resource_tracker.ensure_running()  # which the first start would start, with a mark that is not its own
    with variables({MARK: mark}):
        yield


@contextlib.contextmanager
def starting(mark: str) -> Iterator[None]:
    """Around the start of a child: it has the mark, and no signal reaches it without its handlers."""
    # Marked first: the resource tracker unblocks signals.
    with marked(mark), stop_signals_blocked(), one_thread_each():
        yield
