"""What children start: simulators, servers, compilers, which must not outlive the process that they belong to.

Every child is born with a mark among its environment variables, or takes it when it is forked; everything that it
starts inherits it, by exec or by fork. A worker with environments leads a process group as well. When a child ends, its
group is killed, and so is everything with its mark, also what has left the group: orphans come to the supervisor,
because it is a subreaper. When the run ends, everything with the mark of the run is killed, and when the supervisor
itself is killed, `sf.processes.watchdog` does that, children that have just been born and do not yet
know their parent included.
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
from typing import Any

import psutil

from sf.machine.limits import one_thread_each
from sf.processes import watchdog
from sf.processes.process import MARK, stop_signals_blocked
from sf.processes.spawning import command_line_in_file

QUIET_LOOKS = 2
"""In a row that find nobody; a single one can miss what is being born."""
LEAST_PASSES = 3
"""Allowed however long a machine that stands still takes for them; more while there is time."""
LONGEST_CLEANING_S = 2.0
LAST_BREATH_S = 0.5
"""Of those that are killed in one pass, together."""
MARK_LENGTH = 96
"""Characters of every mark, so that a process that was forked can write its own over that of its parent."""

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class Simulators:
    """Held by the supervisor while a run has processes."""

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex
        self._watchdog = self._new_watchdog()
        self._subreaper = Subreaper()
        self._groups: set[int] = set()
        self._daemons: set[int] = set()
        self.unkillable: set[int] = set()
        """Pids of children that not even the kernel has ended; nobody waits for them any more."""
        self.has_no_watchdog = ""
        """Why, if it has ended and no other one could be started."""

    def _new_watchdog(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), f"{MARK}={self.run}"]
        with stop_signals_blocked():  # until it ignores them
            return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def mark_of(self, name: str, incarnation: int) -> str:
        """What all that one child starts has in its environment."""
        return f"{self.run}/{incarnation}/{name}"[:MARK_LENGTH].ljust(MARK_LENGTH, ".")

    def watch(self, group: int) -> None:
        """Remembers the process group of a new worker."""
        self._groups.add(group)
        self._say(f"{group}\n")

    def end_of(self, pid: int, mark: str) -> None:
        """Kills what a worker has started that has ended, before anybody reaps it: its pid is still its own."""
        kill_what_it_started(pid, mark)
        self._groups.discard(pid)
        self._say(f"-{pid}\n")

    def reap(self) -> None:
        """Takes note of orphans of the living workers that have ended by themselves, and of a watchdog that has."""
        if self._watchdog.poll() is not None:
            self._replace_watchdog()
        self._reap_daemons()
        for group in self._groups:
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                    if ended.si_pid == group:
                        break  # the worker itself, whose end is not dealt with here
                    os.waitpid(ended.si_pid, os.WNOHANG)

    def _replace_watchdog(self) -> None:
        """Tells the new one of all groups; if nothing can be started now, the next look tries again."""
        try:
            successor = self._new_watchdog()
        except OSError as error:
            self.has_no_watchdog = str(error)
            return
        self.has_no_watchdog = ""
        self._drop_pipe()
        self._watchdog = successor
        for group in self._groups:
            self._say(f"{group}\n")

    def _reap_daemons(self) -> None:
        """Those that have left the session of the run; by the mark that was seen while they lived, not by accident."""
        session, mark = os.getsid(0), f"{MARK}={self.run}"
        for child in psutil.Process().children():
            with contextlib.suppress(OSError, psutil.Error):
                if child.status() == psutil.STATUS_ZOMBIE:
                    if child.pid in self._daemons:
                        os.waitpid(child.pid, os.WNOHANG)
                        self._daemons.discard(child.pid)
                elif os.getsid(child.pid) != session and watchdog.is_marked(child.pid, mark):
                    self._daemons.add(child.pid)

    def close(self) -> None:
        """Kills what is left of the run, whose children have been waited for, and ends the watchdog."""
        kill_marked(self.run, spared=self.unkillable)
        self._say("done\n")
        self._drop_pipe()
        try:
            self._watchdog.wait(5.0)
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            self._watchdog.wait()
        self._subreaper.close()

    def _drop_pipe(self) -> None:
        assert self._watchdog.stdin is not None
        with contextlib.suppress(OSError):
            self._watchdog.stdin.close()

    def _say(self, line: str) -> None:
        assert self._watchdog.stdin is not None
        with contextlib.suppress(OSError):  # somebody has killed it; its successor is told of all groups
            self._watchdog.stdin.write(line)
            self._watchdog.stdin.flush()


class Subreaper:
    """Makes this process the parent of the orphans among its descendants, until all who want it have closed theirs."""

    holders = 0
    before = 0

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if Subreaper.holders == 0:
            before = ctypes.c_int()
            self._prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
            Subreaper.before = before.value
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1)
        Subreaper.holders += 1

    def close(self) -> None:
        Subreaper.holders -= 1
        if Subreaper.holders == 0:
            self._prctl(_PR_SET_CHILD_SUBREAPER, Subreaper.before)

    def _prctl(self, option: int, value: Any) -> None:
        if self._libc.prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl for the subreaper failed")


def kill_what_it_started(pid: int, mark: str) -> None:
    """Kills the process group of a child that was not reaped yet, and everything else with its mark."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    kill_marked(mark, pid, {pid})


def kill_marked(mark: str, group: int | None = None, spared: Set[int] = frozenset()) -> None:
    """Kills and reaps descendants whose mark begins so, or that are in a group, until none is left: some give birth.

    Those that are spared have ended, or not even the kernel ends them.
    """
    deadline, passes, quiet = time.monotonic() + LONGEST_CLEANING_S, 0, 0
    dying: set[psutil.Process] = set()  # who has no mark any more, and is to be reaped all the same
    while quiet < QUIET_LOOKS and (passes < LEAST_PASSES or time.monotonic() < deadline):
        left = _descendants(mark, group, spared)
        passes, quiet = (passes + 1, 0) if left else (passes, quiet + 1)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        dying = set(psutil.wait_procs(dying.union(left), timeout=LAST_BREATH_S)[1])


def _descendants(mark: str, group: int | None, spared: Set[int]) -> list[psutil.Process]:
    """Those that bear the mark or are in the group, but for the spared ones."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(ProcessLookupError):
            in_group = os.getpgid(child.pid) == group
            if child.pid not in spared and (in_group or watchdog.is_marked(child.pid, f"{MARK}={mark}")):
                found.append(child)
    return found


@contextlib.contextmanager
def marked(mark: str) -> Iterator[None]:
    """Inside the block everything that this process starts inherits the mark."""
    resource_tracker.ensure_running()  # which the first start would start, with a mark that is not its own
    before = os.environ.get(MARK)
    os.environ[MARK] = mark
    try:
        yield
    finally:
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before


@contextlib.contextmanager
def starting(mark: str) -> Iterator[None]:
    """Around the start of a child that is a program: it has the mark, and no signal reaches it without its handlers."""
    # Marked first: the resource tracker unblocks signals.
    with marked(mark), stop_signals_blocked(), one_thread_each(), command_line_in_file():
        yield
