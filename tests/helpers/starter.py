"""A Python that has loaded torch and forks the commands of the tests, so that each of them need not load it again.

A new Python takes two to four seconds of a core until it has loaded torch. Here that is done once by each process that
runs tests. A command is the same in all else: it has arguments, directory, environment, streams and session of its own,
and ends as Python ends. Fork servers of its run are forks of it, and the children of the process that runs tests are
forks of the starter.

What a command that is already loaded cannot show gets a new Python: see `needs_new_python`. With SF_TEST_NEW_PYTHON=1
in the environment every command gets one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Container, Mapping, Sequence
from multiprocessing import util
from pathlib import Path

import psutil

from sf.machine.memory import TUNABLES
from sf.processes import spare
from sf.processes.simulators import Subreaper
from sf.processes.ties import MARK
from tests.helpers.forks import LOADED_BEFORE, MOST_DESCRIPTORS, ONE_THREAD, REQUEST_BYTES

ROOT = str(Path(__file__).parents[2])
LAUNCH = ("env", "--default-signal=HUP,INT", "setpriv", "--pdeathsig", "KILL")
"""As a user does, also where nohup, or a shell without jobs, has started the tests; what ends the tests ends it too."""
LOADED_FROM = {
    name: Path(str(found.origin)).parents[1]
    for name in {module.partition(".")[0] for module in LOADED_BEFORE}
    if (found := importlib.util.find_spec(name)) and found.submodule_search_locations
}
"""Folder of each of these packages, before any test has changed where Python looks."""
READ_AT_THE_START = (
    "PYTHON",
    "LD_PRELOAD",
    "GLIBC_",
    "MALLOC_",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "CUDA_",
    "TORCH_",
    "LC_",
    "LANG",
)
"""Beginnings of variables that Python or a library reads once. OpenCV changes LD_LIBRARY_PATH when it is loaded."""
MAIN = "import runpy; from tests.helpers.forks import next_module; runpy._run_module_as_main(next_module())"


ENVIRONMENT = dict(os.environ)
"""Before any test has changed it."""


class ForkedCommand:
    """A command that the starter has forked, with the methods of a `subprocess.Popen` that tests use."""

    def __init__(self, status: int) -> None:
        """Waits for the process; `status` is a pipe with its number, then with its exit status."""
        self._status = status
        self.returncode: int | None = None
        found = os.read(status, 4)
        assert len(found) == 4, "the starter of commands has ended"
        (self.pid,) = struct.unpack("i", found)

    def poll(self) -> int | None:
        """The exit code as `subprocess` has it, None of one that runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end.

        Raises:
            subprocess.TimeoutExpired: it has not come.
        """
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    return None
            found = os.read(self._status, 4)
            assert len(found) == 4, "the starter of commands has ended"
            os.close(self._status)
            (self.returncode,) = struct.unpack("i", found)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Does nothing to one that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Starter:
    """The process that forks, as the process that runs tests sees it."""

    def __init__(self) -> None:
        """Starts it; it takes requests at once and answers when it has loaded all."""
        self.environment = ENVIRONMENT
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # The name that a process shows takes the place of its arguments, so these must be long enough.
            line = [*LAUNCH, sys.executable, "-c", MAIN, str(theirs.fileno()), "-" * 4000]
            mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())  # who starts a child has stop signals blocked
            self._process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=ROOT,
                env=self.environment | {"PYTHONPATH": ROOT, MARK: spare.ROOM_FOR_MARK}, start_new_session=True,
            )  # fmt: skip
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def start(
        self, module: str, arguments: Sequence[str], path: Path, environment: Mapping[str, str], out: int, err: int
    ) -> ForkedCommand:
        """Has it fork a process that does what ``python -m module arguments`` does."""
        request = {"module": module, "arguments": arguments, "path": str(path), "environment": dict(environment)}
        message = json.dumps(request).encode()
        assert len(message) < REQUEST_BYTES
        status, theirs = os.pipe()
        try:
            socket.send_fds(self._socket, [message], [out, err, theirs])
        finally:
            os.close(theirs)
        return ForkedCommand(status)

    def start_child(self, line: Sequence[str], descriptors: Sequence[int]) -> int:
        """Has it fork a process that becomes a child of this one; returns its number.

        Args:
            line: what follows ``python -c`` of the program that the fork takes the place of.
            descriptors: that it inherits.
        """
        request = {
            "line": [*line],
            "parent": os.getpid(),
            "path": os.getcwd(),
            "sys_path": sys.path,
            "environment": dict(os.environ),
        }
        message = json.dumps({**request, "descriptors": [*descriptors]}).encode()
        assert len(message) < REQUEST_BYTES
        status, theirs = os.pipe()
        subreaper = Subreaper()  # while the process between the two ends, which makes this one the parent
        try:
            socket.send_fds(self._socket, [message], [1, 2, theirs, *descriptors])
            os.close(theirs)
            found = os.read(status, 4)
            while psutil.Process(struct.unpack("i", found)[0]).ppid() != os.getpid():
                time.sleep(0.001)
        finally:
            subreaper.close()
            os.close(status)
        return int(struct.unpack("i", found)[0])

    def close(self) -> None:
        """Commands that run are killed with it."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


_starters: dict[int, Starter] = {}
"""By the process that has started it: a fork of it has none."""


def needs_new_python(environment: Mapping[str, str], without: Container[str] = ()) -> bool:
    """Whether a command with this environment would find something else in a Python that has been started before.

    Args:
        environment: of the command.
        without: variables that do not matter, since they had these values when it was started.
    """
    if os.environ.get("SF_TEST_NEW_PYTHON") or threading.current_thread() is not threading.main_thread():
        return True
    folders = environment["PYTHONPATH"].split(os.pathsep)
    if any(_puts_another_in_place(os.path.abspath(folder)) for folder in folders):
        return True
    own = os.environ if os.getpid() not in _starters else _starters[os.getpid()].environment
    names = {name for name in {*own, *environment} if name.startswith(READ_AT_THE_START)} - {"PYTHONPATH"}
    names = {name for name in names if name not in without}
    return any(own.get(name) != environment.get(name) for name in names)


def _puts_another_in_place(folder: str) -> bool:
    """Whether a module of this folder would be run at the start, or be loaded in place of one that is loaded before."""
    names = [name for name, home in LOADED_FROM.items() if str(home) != folder]
    return any(
        os.path.exists(os.path.join(folder, file))
        for name in ("sitecustomize", *names)
        for file in (f"{name}.py", os.path.join(name, "__init__.py"))
    )


def forked(
    module: str, arguments: Sequence[str], path: Path, environment: Mapping[str, str], out: int, err: int
) -> ForkedCommand:
    """A fork of the starter, which is started if there is none."""
    own = os.getpid()
    if own not in _starters:
        _starters[own] = Starter()
    return _starters[own].start(module, arguments, path, environment, out, err)


def start_program(executable: bytes, command: Sequence[str], descriptors: Sequence[int]) -> int:
    """Has the place of `spawnv_passfds` of `multiprocessing.util` in a process that runs tests."""
    path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    tunables = {name: value for name, value in os.environ.items() if name != TUNABLES}
    own = os.getpid()
    if own not in _starters:
        _starters[own] = Starter()
    if (
        MARK not in os.environ
        or len(descriptors) > MOST_DESCRIPTORS
        or needs_new_python({**tunables, "PYTHONPATH": path}, without=ONE_THREAD)
    ):
        return new_program(executable, command, descriptors)
    return _starters[own].start_child(command[command.index("-c") + 1 :], descriptors)


def close_starter() -> None:
    """At the end of the tests."""
    if starter := _starters.pop(os.getpid(), None):
        starter.close()


new_program = util.spawnv_passfds
"""What starts a child, as users have it."""
