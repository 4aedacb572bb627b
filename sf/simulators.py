"""What environments start: simulators and servers, which must not outlive the worker that they belong to.

A worker with environments leads a process group of its own and marks its environment variables, which everything that
it starts inherits. When it ends, its group is killed, and so is everything with its mark, also what has left the group:
orphans come to the supervisor, because it is a subreaper. When the supervisor itself is killed, `sf.watchdog` does it.
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
from pathlib import Path
from typing import Any

import psutil

from sf import watchdog
from sf.process import MARK

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class Simulators:
    """Held by the supervisor while a run has processes."""

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex
        self._subreaper = Subreaper()
        command = [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), f"{MARK}={self.run}"]
        self._watchdog = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def mark_of(self, name: str, incarnation: int) -> str:
        """What one worker writes into its environment."""
        return f"{self.run}/{name}/{incarnation}/"

    def watch(self, group: int) -> None:
        """Tells the watchdog of the process group of a new worker."""
        self._say(f"{group}\n")

    def close(self) -> None:
        """Ends the watchdog; every worker has been waited for."""
        self._say("done\n")
        assert self._watchdog.stdin is not None
        with contextlib.suppress(OSError):
            self._watchdog.stdin.close()
        try:
            self._watchdog.wait(5.0)
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            self._watchdog.wait()
        self._subreaper.close()

    def _say(self, line: str) -> None:
        assert self._watchdog.stdin is not None
        with contextlib.suppress(OSError):  # somebody killed it, which does no harm as long as nobody kills us
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


def _until_zombie(pid: int, timeout_s: float = 1.0) -> None:
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < deadline:
            time.sleep(0.001)


def end_of_worker(pid: int, mark: str) -> None:
    """Kills what a worker has started that has ended, before anybody waits for it: its pid is still its own."""
    _until_zombie(pid)  # from then on its children are ours
    orphans = [child for child in psutil.Process().children() if watchdog.is_marked(child.pid, f"{MARK}={mark}")]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for orphan in orphans:
        with contextlib.suppress(psutil.Error):
            orphan.kill()
            orphan.wait(1.0)
