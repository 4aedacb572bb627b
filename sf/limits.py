"""What the operating system allows this process, compared with what a run needs before anything is started."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from sf.errors import ResourceError

PER_PROCESS = 4
"""Descriptors that the supervisor keeps for each child: sentinel, reports, and two while it is started."""
THREADS_PER_PROCESS = 2
"""One that computes, and what libraries start beside it."""
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


def available_memory() -> tuple[int, str]:
    """Bytes that can be had without anybody being killed for them, and whether the machine or a container says so."""
    import psutil

    machine = psutil.virtual_memory().available
    groups = [left for left in map(_left_in_control_group, CONTROL_GROUPS) if left is not None]
    container = min(groups, default=machine)
    return (container, "container") if container < machine else (machine, "machine")


CONTROL_GROUPS = (
    ("0::", "/sys/fs/cgroup", "memory.max", "memory.current"),
    ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Version 2 and version 1: how the line of /proc/self/cgroup is recognised, where the groups are, limit and use."""


def _left_in_control_group(kind: tuple[str, str, str, str]) -> int | None:
    """Bytes that the group of this process, or a group around it, may still use; None if there is no limit."""
    controller, root, limit_name, use_name = kind
    least = None
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if not (line.startswith("0::") if controller == "0::" else controller in names.split(",")):
                continue
            group = Path(root + path)
            for one in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    used = int((one / use_name).read_text()) - _cache_of_files(one)
                    left = int((one / limit_name).read_text()) - used
                    least = left if least is None else min(least, left)
    return least


def _cache_of_files(group: Path) -> int:
    """Bytes that a control group uses and the kernel gives back when they are needed."""
    values = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    prefix = "total_" if "total_inactive_file" in values else ""  # version 1, with the groups below it
    return int(values[f"{prefix}inactive_file"]) + int(values[f"{prefix}active_file"])


JUST_NOW_S = 3.0


def ensure_processes(num_processes: int) -> None:
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
    needed = num_processes * THREADS_PER_PROCESS
    if running + needed > limit:
        raise ResourceError(
            f"The run needs about {needed} threads for {num_processes} processes, and of the {limit} that you may have "
            f"{running} are there already. Raise the limit (ulimit -u) or use fewer --num_workers."
        )


class MemoryKills:
    """Whether the kernel kills processes to get their memory: a counter of the whole machine, containers included."""

    def __init__(self) -> None:
        self._seen, self._rose_s = _count_of_memory_kills(), -math.inf

    def look(self, now_s: float) -> None:
        """To be called now and then, so that a rise of the counter has a time."""
        before, self._seen = self._seen, _count_of_memory_kills()
        if self._seen > before:
            self._rose_s = now_s

    def were_just_now(self) -> bool:
        """Whether there was one within the last seconds."""
        now_s = time.monotonic()
        self.look(now_s)
        return now_s - self._rose_s < JUST_NOW_S


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
