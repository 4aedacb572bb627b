"""What ties a process to the one that has started it: the signals it is born with, its end, and the mark it carries."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from sf.errors import ExitCode
from sf.processes.signals import STOP_SIGNALS

MARK = "SF_WORKER"
"""Environment variable of everything that the child processes of a run start."""

STACKS_SIGNAL = signal.SIGUSR2
"""Has a child print where its threads are."""

_PR_SET_PDEATHSIG = 1
_ENV_START, _ENV_END = 47, 48
"""Fields of /proc/self/stat behind the name of the program, from 0: where its first environment lies in its memory."""


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Around the start of a child: it inherits the mask, so that a signal cannot end it before it knows what to do."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, STACKS_SIGNAL})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent dies. Must be called from the main thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:  # it died before the request
        os._exit(ExitCode.INTERNAL)


def take_mark(mark: str) -> None:
    """Gives this process a mark, which all that it starts inherits.

    A program that it begins finds the mark in its environment. For a fork the kernel shows the first environment of the
    program that was forked, so the mark is written there as well, as far as there is room.
    """
    os.environ[MARK] = mark
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not start:  # the kernel does not tell
        return
    name = f"{MARK}=".encode()
    position = ctypes.string_at(start, end - start).find(name)
    if position < 0:
        return
    begin = start + position + len(name)
    room = len(ctypes.string_at(begin))
    ctypes.memmove(begin, mark.encode()[:room].ljust(room), room)  # which begins with the run
