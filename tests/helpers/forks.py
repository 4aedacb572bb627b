"""What the starter of commands does: it loads torch, takes requests, and makes each fork what a new Python would be."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import json
import os
import selectors
import shlex
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import process
from typing import Any, NoReturn

from setproctitle import setproctitle

from sf.processes import spare
from sf.processes.signals import STOP_SIGNALS
from sf.processes.ties import MARK, STACKS_SIGNAL, take_mark

LOADED_BEFORE = (
    "numpy", "torch", "torch._dynamo", "gymnasium.envs.classic_control", "gymnasium.vector", "cloudpickle", "psutil",
    "rich.progress", "safetensors.torch", "signal_slot.signal_slot", "tensorboardX", "tyro", "multiprocessing.spawn",
    "sf.cli.arguments", "sf.cli.command", "sf.config.presets", "sf.evaluator.last", "sf.inference.network_actor",
    "sf.inference.worker", "sf.learner.worker", "sf.plans", "sf.rollout.worker", "sf.run.first_look",
    "sf.run.supervisor",
)  # fmt: skip
"""Packages of others, and below them modules of `sf`, that most commands load. None is a command itself."""
ONE_THREAD = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""What `one_thread_each` of `sf.machine.limits` sets before libraries are loaded."""
REQUEST_BYTES = 2**17
PR_SET_PDEATHSIG = 1
MOST_DESCRIPTORS = 240


def next_module() -> str:
    """Serves requests, in the starter; returns in each fork, with the module that it is to run."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    base = sys.path[2:]  # without the working directory and the root of the tests
    _load()
    running: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not connection:
                    _reap(selector, key.fd, *running.pop(key.fd))
                    continue
                message, descriptors, *_ = socket.recv_fds(connection, REQUEST_BYTES, MOST_DESCRIPTORS + 3)
                if not message:
                    os._exit(0)
                out, err, status, *more = descriptors
                if more:
                    _fork_child(json.loads(message), out, err, status, *more)
                    continue
                pid = os.fork()
                if pid == 0:
                    for descriptor in (
                        connection.detach(),
                        status,
                        *running,
                        *(other for _, other in running.values()),
                    ):
                        os.close(descriptor)
                    return _become(json.loads(message), base, out, err)
                os.close(out)
                os.close(err)
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, struct.pack("i", pid))
                pidfd = os.pidfd_open(pid)
                running[pidfd] = pid, status
                selector.register(pidfd, selectors.EVENT_READ)


def _load() -> None:
    before = dict(os.environ)
    os.environ.update({name: value for name, value in ONE_THREAD.items() if "OMP_NUM_THREADS" not in before})
    os.environ["SPT_NOENV"] = "1"  # as `sf` does: the title takes no more than the arguments
    setproctitle("starter-of-tests")  # no name of `sf`, whose processes tests look for
    for name in LOADED_BEFORE:
        importlib.import_module(name)
    os.environ.clear()
    os.environ.update(before)
    gc.collect()
    gc.freeze()  # what the collector does not look at stays one copy for all


def _fork_child(request: dict[str, Any], out: int, err: int, status: int, *passed: int) -> None:
    """A grandchild, whose parent ends at once, so that it becomes a child of the process that has asked for it."""
    between = os.fork()
    if between == 0:
        parent = request["parent"]
        if pid := os.fork():
            os.write(status, struct.pack("i", pid))
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, STACKS_SIGNAL})
        while os.getppid() != parent:
            time.sleep(0.001)
        _take_over(request, out, err)
        sys.path[:] = request["sys_path"]
        _close_but(*passed)
        _give_numbers(dict(zip(passed, request["descriptors"], strict=True)))
        take_mark(os.environ[MARK])
        sys.modules["random"].seed()
        program, *sys.argv[1:] = request["line"]
        setproctitle(shlex.join([sys.executable, "-c", *request["line"]]))
        _do(program)
    for descriptor in (out, err, status, *passed):
        os.close(descriptor)
    os.waitpid(between, 0)


def _do(program: str) -> NoReturn:
    """What ``python -c`` does, without the end of the starter."""
    code = 1
    try:
        exec(program, {"__name__": "__main__"})
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _give_numbers(wanted: Mapping[int, int]) -> None:
    """Gives descriptors the numbers that they have where they come from."""
    most = max([*wanted, *wanted.values()]) + 1
    moved = {fcntl.fcntl(have, fcntl.F_DUPFD, most): number for have, number in wanted.items()}
    for have in wanted:
        os.close(have)
    for have, number in moved.items():
        os.dup2(have, number)
        os.close(have)


def _reap(selector: selectors.BaseSelector, pidfd: int, pid: int, status: int) -> None:
    _, found = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(status, struct.pack("i", os.waitstatus_to_exitcode(found)))
    selector.unregister(pidfd)
    os.close(pidfd)
    os.close(status)


def _become(request: dict[str, Any], base: list[str], out: int, err: int) -> str:
    """Makes this fork what a new Python would be; returns the module."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _take_over(request, out, err)
    sys.path[:] = [request["path"], *request["environment"]["PYTHONPATH"].split(os.pathsep), *base]
    sys.modules["numpy"].random.seed()  # else all forks would draw the same numbers
    module: str = request["module"]
    sys.argv = ["-m", *request["arguments"]]
    sys.orig_argv = [sys.executable, "-m", module, *request["arguments"]]
    setproctitle(shlex.join(sys.orig_argv))
    spare.start_program = _fork_program
    return module


def _take_over(request: dict[str, Any], out: int, err: int) -> None:
    """Streams, directory and environment of who has asked."""
    for descriptor, standard in ((out, 1), (err, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.chdir(request["path"])
    os.environ.clear()
    os.environ.update(request["environment"])
    process.ORIGINAL_DIR = request["path"]  # type: ignore[attr-defined]  # where children of `multiprocessing` begin
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]


def _close_but(*kept: int) -> None:
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):  # the one that has read the directory
                os.close(descriptor)


def _fork_program(connection: int, arguments: Sequence[str]) -> int:
    """Has the place of `start_program` of `sf.processes.spare`, unless threads forbid a fork."""
    if len(os.listdir("/proc/self/task")) > 1:
        return new_spare(connection, arguments)
    if pid := os.fork():
        return pid
    _close_but(connection)
    parent, *modules = arguments
    spare.wait_for_job(connection, int(parent), modules)


new_spare = spare.start_program
"""A Python that loads what a spare needs, as users have it."""
