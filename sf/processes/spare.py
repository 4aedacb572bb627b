"""A Python that is started before its job is known, and loads meanwhile what the job needs.

A command starts the spares of its run first of all, so that they load while it reads its flags. Thus this module
imports next to nothing, and what hands a job over is in `sf.processes.child`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from multiprocessing import spawn, util
from typing import NoReturn

from sf.machine.limits import one_thread_each
from sf.machine.loading import load
from sf.machine.memory import huge_pages
from sf.machine.variables import variables
from sf.processes.private import interpreter_flags, run_job_and_exit
from sf.processes.ties import MARK, end_with_parent, stop_signals_blocked

ROOM_FOR_MARK = " " * 200
"""Place in the environment of a spare, in which it and its forks write their own mark."""
MAIN = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from sf.processes.spare import main; main()"

NETWORKS = "fork-server"
ENVIRONMENTS = "env-server"
MODULES: dict[str, Sequence[str]] = {
    NETWORKS: ("sf.learner.worker", "sf.inference.worker", "sf.inference.network_actor"),
    ENVIRONMENTS: ("gymnasium.vector", "gymnasium.envs.classic_control", "sf.rollout.worker", "sf.run.first_look"),
}
"""What most jobs of each need."""


class Spare:
    """One such process, as the process that has started it sees it."""

    def __init__(self, name: str) -> None:
        """Starts it; it loads what jobs of this name need at once.

        Raises:
            OSError: the kernel gives no more processes.
        """
        self._socket, theirs = socket.socketpair()
        with theirs, variables({MARK: ROOM_FOR_MARK}), stop_signals_blocked(), one_thread_each(), pages_for(name):
            self.pid = start_program(theirs.fileno(), [str(os.getpid()), *MODULES[name]])

    def hand_over(self, descriptors: Sequence[int]) -> None:
        """Sends what it needs to begin; it may have died, which its parent sees."""
        with self._socket, contextlib.suppress(BrokenPipeError, ConnectionError):
            socket.send_fds(self._socket, [bytes([len(descriptors)])], descriptors)

    def close(self) -> None:
        """Ends it, if it has not been given a job."""
        if self._socket.fileno() < 0:
            return
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class Spares:
    """Those of one run, by the name of their job."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._waiting: dict[str, Spare] = {}

    def close(self) -> None:
        """Ends those that have not been given a job."""
        while self._waiting:
            self._waiting.popitem()[1].close()

    def start(self, name: str) -> None:
        """Begins to load, unless that has begun."""
        if name not in self._waiting:
            self._waiting[name] = Spare(name)

    def take(self, name: str) -> Spare:
        """The one that loads already, or a new one."""
        self.start(name)
        return self._waiting.pop(name)


def pages_for(name: str) -> contextlib.AbstractContextManager[None]:
    """Around the start of a process of this kind: those with networks work on large tensors, or their forks do."""
    return huge_pages() if name == NETWORKS else contextlib.nullcontext()


def start_program(connection: int, arguments: Sequence[str]) -> int:
    """A new Python that runs `main` with these arguments; returns its process number."""
    flags = interpreter_flags()
    line = [spawn.get_executable(), *flags, "-c", MAIN, json.dumps([*map(str, sys.path)]), str(connection), *arguments]
    return util.spawnv_passfds(os.fsencode(spawn.get_executable()), line, [connection])


def main() -> NoReturn:
    """The spare itself; its arguments are the path of modules, a socket, its parent, and the modules."""
    _, _, connection, parent, *modules = sys.argv
    wait_for_job(int(connection), int(parent), modules)


def wait_for_job(connection: int, parent: int, modules: Sequence[str]) -> NoReturn:
    """Loads, and then does what it is given, as a process that a fork server has forked does."""
    end_with_parent(parent)
    with contextlib.suppress(Exception):  # told by the job, which loads it again
        load(modules, freeze=True)
    with socket.socket(fileno=connection) as arrivals:
        message, descriptors, *_ = socket.recv_fds(arrivals, 1, MOST_DESCRIPTORS)
    if not message:
        os._exit(0)
    job, tracker, *inherited = descriptors
    run_job_and_exit(job, tracker, inherited)


MOST_DESCRIPTORS = 250
"""In one message; the kernel takes 253."""
