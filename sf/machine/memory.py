"""How much memory there is for this process, and whether it has run out."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

from sf.errors import text_of
from sf.machine.variables import variables


def available_memory() -> tuple[int, str]:
    """Bytes that can be had without a process being killed for them, and whether the machine or a container says so."""
    import psutil

    machine = psutil.virtual_memory().available
    groups = [left for left in map(_left_in_control_group, CONTROL_GROUPS) if left is not None]
    container = min(groups, default=machine)
    return (container, "container") if container < machine else (machine, "machine")


CONTROL_GROUPS = (
    ("", "/sys/fs/cgroup", "memory.max", "memory.current"),
    ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Version 2, which has no names, and version 1: name in /proc/self/cgroup, where the groups are, limit and use."""


def _left_in_control_group(kind: tuple[str, str, str, str]) -> int | None:
    """Bytes that the group of this process, or a group around it, may still use; None if there is no limit."""
    controller, root, limit_name, use_name = kind
    group, least = _own_group(controller, root), None
    for one in (group, *group.parents) if group else ():
        with contextlib.suppress(OSError, ValueError, KeyError):
            used = int((one / use_name).read_text()) - _cache_of_files(one)
            left = int((one / limit_name).read_text()) - used
            least = left if least is None else min(least, left)
    return least


def _own_group(controller: str, root: str) -> Path | None:
    """Directory of the control group of this process; None without such a controller."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if controller in names.split(","):
                return Path(root + path)
    return None


def _cache_of_files(group: Path) -> int:
    """Bytes that a control group uses and the kernel gives back when they are needed."""
    values = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    prefix = "total_" if "total_inactive_file" in values else ""  # version 1, with the groups below it
    return int(values[f"{prefix}inactive_file"]) + int(values[f"{prefix}active_file"])


JUST_NOW_S = 3.0
"""So long after a rise of the counter a death is put down to it."""


class MemoryKills:
    """Whether the kernel kills processes to get their memory.

    Version 2 counts them for the control group of this process and those below it. Where that says nothing, those of
    the whole machine count, containers included.
    """

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
    group = _own_group("", "/sys/fs/cgroup")
    for file in [*([group / "memory.events"] if group else []), Path("/proc/vmstat")]:
        with contextlib.suppress(OSError, ValueError):
            for line in file.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "Create(handle)")
"""Words of torch on the CPU, of the CUDA runtime, and of its libraries, which also fail to begin without memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory could not be had, of the machine or of an accelerator."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in text_of(error) for words in OUT_OF_MEMORY)


TUNABLES, HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


@contextlib.contextmanager
def huge_pages() -> Iterator[None]:
    """Around the start of a process that works on large tensors: its C library asks the kernel for pages of 2 MiB.

    So do all programs that this process starts.

    Most kernels give them to those that ask only (`/sys/kernel/mm/transparent_hugepage/enabled` is "madvise"). Pages of
    4 KiB cost 5 to 20 % of the time of training on 84x84 images, because a tensor has more of them than the processor
    can keep track of. glibc asks since its version 2.35; others ignore the variable. A value of the user holds.
    """
    given = os.environ.get(TUNABLES, "")
    asked = given if HUGE_PAGES in given else ":".join(filter(None, (given, f"{HUGE_PAGES}=1")))
    with variables({TUNABLES: asked}):
        yield


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Has this process keep large blocks that it frees, for a loop that allocates the same ones again and again.

    The C library would give them back to the kernel, which clears every page when it is touched next. That took a sixth
    of the time of training a convolutional network on 84x84 images.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # of glibc only
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)
