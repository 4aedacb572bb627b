"""The limits of the operating system for this process, compared with the needs of a run before it starts."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import platform
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from sf.errors import ResourceError
from sf.machine.cores import usable_cores
from sf.machine.variables import variables

PER_PROCESS = 5
"""Descriptors that the supervisor keeps for each child: sentinel, pidfd, reports, and two while it is started."""
SHARED_MEMORY = Path("/dev/shm")
MOST_OF_32_BITS = 2**32
"""Larger than any index of a Python for 32 bits."""
THREADS_PER_PROCESS = 2
"""One that computes, and one for those that libraries start beside it."""
OTHERS = 64
"""Standard streams, shared memory, curves, checkpoints, libraries."""
MEMORY_WITH_TORCH, MEMORY_WITHOUT_TORCH = 150 * 2**20, 30 * 2**20
"""Bytes that a process takes at least, in any run."""
NOTHING_LEFT = errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM
"""Errors of the kernel when it gives no more files, processes or memory."""


def as_refusal(error: BaseException) -> ResourceError | None:
    """The error for the user if the kernel had nothing left to give; None for another error."""
    if not (isinstance(error, OSError) and error.errno in NOTHING_LEFT):
        return None
    told = ResourceError(
        f"The machine gives no more files, processes or memory: {error}. Raise the limit (of a container, ulimit -n or "
        "ulimit -u) or use fewer --num_workers."
    )
    told.__cause__ = error
    return told


@contextlib.contextmanager
def refusals_told() -> Iterator[None]:
    """Around code that starts processes.

    Raises:
        ResourceError: the kernel has refused something.
    """
    try:
        yield
    except OSError as error:
        if told := as_refusal(error):
            raise told from error
        raise


def ensure_descriptors(num_processes: int, further: int) -> None:
    """Raises the soft limit on open files if the run needs more.

    Args:
        num_processes: children of this process.
        further: descriptors for them, such as doorbells.

    Raises:
        ResourceError: the hard limit is lower still.
    """
    needed = OTHERS + PER_PROCESS * num_processes + further
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ResourceError(
            f"The run needs about {needed} open files for {num_processes} processes, and the limit is {hard}. Raise it "
            "(ulimit -n), or use fewer --num_workers, or --serial_mode=True."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def ensure_room_for_processes(with_torch: int, without_torch: int, further_threads: int) -> int:
    """Compares processes and threads with the limits of the system; returns the bytes that they take at least.

    Args:
        with_torch, without_torch: processes.
        further_threads: beside those that every process has.

    Raises:
        ResourceError: too few open files, processes or threads are allowed.
    """
    num_processes = with_torch + without_torch
    ensure_descriptors(num_processes, further=num_processes + 1)
    ensure_processes(num_processes, further_threads)
    return with_torch * MEMORY_WITH_TORCH + without_torch * MEMORY_WITHOUT_TORCH


def ensure_shared_memory() -> None:
    """Looks whether processes can make queues.

    Raises:
        ResourceError: they cannot.
    """
    if SHARED_MEMORY.is_dir() and not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        raise ResourceError(
            f"The queues between processes need {SHARED_MEMORY}, which cannot be written here. Mount it writable (in a "
            "container a tmpfs, such as --tmpfs /dev/shm), or use --serial_mode=True."
        )


def ensure_whole_words(instead: str = "--serial_mode=True") -> None:
    """Looks whether another process sees a word of 64 bits as a whole, on which all shared words rest.

    Args:
        instead: what works on such a machine.

    Raises:
        ResourceError: Python, and so perhaps the processor, has words of 32 bits.
    """
    if sys.maxsize < MOST_OF_32_BITS:
        raise ResourceError(
            f"A run of several processes needs a 64-bit Python, and this one has 32 bits ({platform.machine()}). Words "
            f"of 64 bits in shared memory have to be written as a whole. Use {instead}, or another Python."
        )


def ensure_file_size(num_bytes: int, advice: str = "") -> None:
    """Compares shared memory, which is a file for the kernel, with the largest that this process may make.

    Args:
        num_bytes: of the whole block.
        advice: another remedy if that is too much.

    Raises:
        ResourceError: it is too large.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and num_bytes > limit:
        raise ResourceError(
            f"The run needs {math.ceil(num_bytes / 2**20):,} MiB of shared memory in one piece, but the limit on the "
            f"size of files is {limit / 2**20:,.3g} MiB and holds for it too. Raise it (ulimit -f){advice}."
        )


def ensure_processes(num_processes: int, further_threads: int = 0) -> None:
    """Compares the processes and threads that a run needs with what the user may have; the superuser has no limit.

    Raises:
        ResourceError: it is not enough.
    """
    import psutil

    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0:
        return
    user, running = os.getuid(), 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == user:
                running += process.num_threads()
    needed = num_processes * THREADS_PER_PROCESS + further_threads
    if running + needed > limit:
        raise ResourceError(
            f"The run needs about {needed} threads for {num_processes} processes, and of the {limit} that you may have "
            f"{running} are there already. Raise the limit (ulimit -u), or use fewer --num_workers, or "
            "--serial_mode=True."
        )


THREADS_OF_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def threads_beyond_cores(num_workers: int) -> Iterator[str]:
    """A warning where environment variables allow numerical libraries in rollout workers more threads than cores."""
    for name in THREADS_OF_LIBRARIES:
        value, cores = os.environ.get(name, "1"), usable_cores()
        outermost = value.partition(",")[0].strip()  # OpenMP takes a list, a number per level
        each = int(outermost) if outermost.isdecimal() and int(outermost) else cores  # so do libraries
        if each > 1 and num_workers * each > cores:
            where = "the rollout worker" if num_workers == 1 else f"each of {num_workers} rollout workers"
            yield (
                f"Warning: {name}={each} allows numerical libraries {each} threads in {where}, {num_workers * each} on "
                f"{cores} {'core' if cores == 1 else 'cores'}. Set it to 1."
            )


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Around a command, and around the start of a child: numerical libraries start a thread per core when loaded.

    A process that asks for more of them has them sleep while they wait. Variables that the user has set hold; one of
    OpenMP holds for all libraries.
    """
    asked = {"OMP_WAIT_POLICY": "PASSIVE"}
    if "OMP_NUM_THREADS" not in os.environ:
        asked |= dict.fromkeys(THREADS_OF_LIBRARIES, "1")
    with variables({name: value for name, value in asked.items() if name not in os.environ}):
        yield
