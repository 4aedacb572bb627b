"""What the operating system allows this process, compared with what a run needs before anything is started."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from sf.errors import ResourceError

PER_PROCESS = 4
"""Descriptors that the supervisor keeps for each child: sentinel, reports, and two while it is started."""
OTHERS = 64
"""Standard streams, shared memory, curves, checkpoints, libraries."""


def ensure_descriptors(num_processes: int, num_doorbells: int) -> None:
    """Raises the soft limit on open files if the run needs more.

    Raises:
        ResourceError: the hard limit is lower still.
    """
    needed = OTHERS + PER_PROCESS * num_processes + num_doorbells
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ResourceError(
            f"The run needs about {needed} open files for {num_processes} processes, and the limit is {hard}. Raise it "
            "(ulimit -n) or use fewer --num_workers."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class MemoryKills:
    """Whether the kernel kills processes to get their memory: a counter of the whole machine, containers included."""

    def __init__(self) -> None:
        self._seen = _count_of_memory_kills()

    def are_new(self) -> bool:
        """Whether there was one since the last call."""
        before, self._seen = self._seen, _count_of_memory_kills()
        return self._seen > before


def _count_of_memory_kills() -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory could not be had, of the machine or of an accelerator."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch, on the CPU


THREADS_OF_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Around the start of a child: numerical libraries start a thread per core when they are loaded, in each process.

    Where the user has said how many there should be, that holds.
    """
    if any(name in os.environ for name in THREADS_OF_LIBRARIES):
        yield
        return
    os.environ.update(dict.fromkeys(THREADS_OF_LIBRARIES, "1"))
    try:
        yield
    finally:
        for name in THREADS_OF_LIBRARIES:
            os.environ.pop(name, None)
