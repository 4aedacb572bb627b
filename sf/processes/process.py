"""The life of a child process: name, ties to its parent, build, ready, loop, and what it says when it fails.

What it does is a role, see `sf.shared.role`. What goes wrong in a child travels home as text over a pipe of its own,
because an exception may not survive pickling; the exit code says it a second time.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from sf.errors import DeviceLost, EnvCrashed, EnvError, ExitCode, ResourceError, SfError, text_of
from sf.machine.cores import queued_s
from sf.machine.memory import is_out_of_memory
from sf.output import BoundedStream, bound_output
from sf.shared.arena import Arena
from sf.shared.progress import Phase
from sf.shared.records import ASKED
from sf.shared.role import Role, RoleSpec

RUNNING, STOPPING = 0, 1
"""Values of the run-state word that every loop looks at."""


class Stopped(BaseException):
    """A role has seen STOPPING within a long piece of work and leaves it; no exception that others handle."""


NEVER_STOPPED = memoryview(bytes(8)).cast("q")
"""A run-state word for work that no supervisor stops."""

LOOK_AGAIN_S = 1.0
"""No wait is longer, so that a lost doorbell costs time and never a run."""

NOT_GUARDED = 66
"""Exit code of a child that found the training in the script that it had to import."""

PREFIX = "sf-"
"""How the names of our processes begin in the process list."""

MARK = "SF_WORKER"
"""Environment variable of everything that the child processes of a run start."""

MOST_BYTES = 7500
"""Of each text of a failure, of which there are two: below 16 KiB a message is written in one piece."""

LESS_MEMORY = (
    "There is not enough memory. A smaller --batch_size, --rollout or network needs less, and so do fewer environments "
    "(--num_workers, --num_envs_per_worker)."
)
DEVICE_LOST = re.compile(r"CUDA error: .*(uncorrectable|no CUDA-capable device|busy or unavailable|unknown error)")
"""What the CUDA runtime says of an accelerator that is broken, gone, or somebody else's."""
OTHER_DEVICE = (
    "The accelerator cannot be used any more. Look at it with nvidia-smi. The same command goes on from the last "
    "checkpoint, on another accelerator with CUDA_VISIBLE_DEVICES, or with --device=cpu."
)

OOM_SCORE = 500
"""As if it used half of the memory of the machine in addition, where the kernel looks for whom to kill."""

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


@dataclass(frozen=True)
class Ready:
    """The role is built and enters its loop."""


@dataclass(frozen=True)
class Failure:
    """Why a child ends: the text for the user, the traceback for the developer, the exit code for the shell."""

    kind: str
    message: str
    details: str
    exit_code: int
    is_expected: bool
    """Raised on purpose for the user (an SfError), so that the message says everything."""


def failure_of(error: BaseException) -> Failure:
    """Describes an exception in plain text, even one whose own methods raise."""
    try:
        details = "".join(traceback.format_exception(error)).rstrip()
    except Exception:
        details = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    if is_out_of_memory(error):
        error = ResourceError(f"{text_of(error) or type(error).__name__}\n{LESS_MEMORY}")
    elif is_lost_device(error):
        error = DeviceLost(f"{text_of(error)}\n{OTHER_DEVICE}")
    expected = isinstance(error, SfError)
    code = error.exit_code if isinstance(error, SfError) else ExitCode.INTERNAL
    return Failure(type(error).__name__, shortened(text_of(error)), shortened(details), int(code), expected)


def is_lost_device(error: BaseException) -> bool:
    """Whether an exception of torch says that an accelerator cannot be used any more."""
    return isinstance(error, RuntimeError) and DEVICE_LOST.search(text_of(error)) is not None


def shortened(text: str) -> str:
    """The beginning and the end of a text, and how much is missing between them."""
    encoded = text.encode(errors="backslashreplace")
    missing, half = len(encoded) - MOST_BYTES, MOST_BYTES // 2
    if missing <= 0:
        return text
    begin, end = encoded[:half].decode(errors="ignore"), encoded[-half:].decode(errors="ignore")
    return f"{begin}\n[{missing:,} bytes are left out]\n{end}"


def run_child(spec: RoleSpec, parent_pid: int, arena: Arena, reports: Connection) -> None:
    """The main function of every child process."""
    end_with_parent(parent_pid)
    if spec.has_environments:
        lead_group()
        bound_output()
    set_title(spec.name)
    leave_signals_to_parent()
    try:
        with contextlib.suppress(Stopped):  # before it was built
            role = spec.build()
            role.tell = reports.send
            gc.collect()
            gc.freeze()  # what was built stays, so that later collections need not look at it
            reports.send(Ready())
            began_s = time.process_time() + queued_s()  # what it took to begin is no training
            with contextlib.suppress(Stopped):
                _loop(role, arena)
            role.close()
            role.record[ASKED] += time.process_time() + queued_s() - began_s
            role.record.publish()
    except BaseException as error:
        failure = failure_of(error)
        reports.send(failure)
        leave(failure.exit_code)
    leave(ExitCode.FINISHED)


def _loop(role: Role, arena: Arena) -> None:
    run_state, progress = arena["run_state"], role.record.progress
    while run_state[0] == RUNNING:
        progress.enter(Phase.STEP)
        if not role.step():
            progress.enter(Phase.WAIT)
            role.wait(LOOK_AGAIN_S)


def leave(code: int) -> NoReturn:
    """Ends this process now; threads that environments have left behind would hold it up."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            if isinstance(stream, BoundedStream):
                stream.tell_what_is_left_out()
            stream.flush()
    os._exit(code)


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STACKS_SIGNAL = signal.SIGUSR1
"""Has a child print where its threads are."""


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Around the start of a child: it inherits the mask, so that a signal cannot end it before it knows what to do."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, STACKS_SIGNAL})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_parent() -> None:
    """The supervisor decides, asks for stacks, and kills what does not follow.

    The handler of stop signals does nothing, unlike SIG_IGN, which simulators started by an environment would inherit.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    faulthandler.register(STACKS_SIGNAL, file=sys.__stderr__ or sys.stderr, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*STOP_SIGNALS, STACKS_SIGNAL})


def end_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent dies. Must be called from the main thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:  # it died before the request
        os._exit(ExitCode.INTERNAL)


def lead_group() -> None:
    """Puts this process and what it will start into a process group of its own.

    When memory runs out, the kernel takes that of environments first: they can be replaced, and are what leaks.
    """
    os.setpgid(0, 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))


def take_mark(mark: str) -> None:
    """Gives this process, which was forked, a mark in place of the one that it was forked with, for all that it starts.

    What it forks shows what the kernel finds in the memory that the environment was put into when the program began, so
    that the mark is written there as well.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place, room = libc.getenv(MARK.encode()), len(os.environ[MARK])
    assert len(mark) == room  # all marks are equally long
    ctypes.memmove(place, mark.encode(), room)
    os.environ[MARK] = mark


def keep_freed_memory() -> None:
    """Has this process keep large blocks that it frees, for a loop that allocates the same ones again and again.

    The C library gives them back to the kernel, which clears every page when it is touched next: a sixth of the time of
    training a convolutional network on 84x84 images.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # of glibc only
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


def set_title(name: str) -> None:
    """Shows `sf-<name>` in the process list."""
    os.environ["SPT_NOENV"] = "1"  # else the title is written over the mark that forks of this process inherit
    import setproctitle

    setproctitle.setproctitle(f"{PREFIX}{name}")


def call_in_child(
    function: Callable[..., Any], arguments: tuple[Any, ...], reports: Connection, parent_pid: int
) -> None:
    """The main function of a disposable child that computes one value and ends."""
    end_with_parent(parent_pid)
    lead_group()
    bound_output()
    leave_signals_to_parent()
    try:
        reports.send(function(*arguments))
    except BaseException as error:
        reports.send(failure_of(error))
    leave(ExitCode.FINISHED)


def how_it_ended(exit_code: int | None) -> str:
    """As the rest of a sentence that begins with the process."""
    if exit_code is not None and exit_code < 0:
        names = {one.value: one.name for one in signal.Signals}  # not of all real-time signals
        return f"was killed by {names.get(-exit_code, f'signal {-exit_code}')}"
    return f"exited with code {exit_code}"


def as_exception(failure: Failure, who: str) -> SfError:
    """The exception that tells the user of a failure in another process."""
    from sf.errors import CheckpointError, ConfigError, WorkerCrashed

    if not failure.is_expected:
        return WorkerCrashed(f"{who} failed with {failure.kind}: {failure.message}\nIts traceback:\n{failure.details}")
    text = f"{who}: {failure.message}"
    match failure.exit_code:
        case ExitCode.ENVIRONMENT:
            return EnvCrashed(text) if failure.kind == EnvCrashed.__name__ else EnvError(text)
        case ExitCode.CHECKPOINT:
            return CheckpointError(text)
        case ExitCode.RESOURCES:
            return ResourceError(text)
        case ExitCode.USAGE:
            return ConfigError([text])
        case _:
            return WorkerCrashed(text)
