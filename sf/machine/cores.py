"""How many cores a run may use: those of its affinity, and no more than the CPU quota of its container grants.

And how long a thread has waited for one.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

CGROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Compute:
    """The cores and device that a role computes with."""

    num_threads: int = 1
    accelerator: int | None = None
    """Its number, counted on beyond those that there are; None for the CPU."""


ONE_THREAD = Compute()


def usable_cores(cgroups: Path = CGROUPS, own_groups: Path = OWN_GROUPS) -> int:
    """Cores of this process, at least 1; a quota of two and a half counts as three.

    Args:
        cgroups: where the kernel shows control groups, of version 1 or 2.
        own_groups: file that names those of this process.
    """
    quota = min(_quotas(cgroups, own_groups), default=math.inf)
    allowed = len(allowed_cores())
    return max(1, allowed if quota >= allowed else math.ceil(quota))


def allowed_cores() -> set[int]:
    """Numbers of the cores that this process may run on; all of them where the system has no affinity, as macOS."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def queued_s() -> float:
    """Seconds that this thread was ready to run and another one had the core; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def asked_s(pids: Iterable[int], proc: Path = Path("/proc")) -> float:
    """Seconds that the main threads of processes have computed, or were ready to and had no core, added up.

    Processes that have ended, and all where the kernel does not say, count as 0.
    """
    total_ns = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            computed, queued, _ = map(int, (proc / str(pid) / "schedstat").read_text().split())
            total_ns += computed + queued
    return total_ns / 1e9


def _quotas(cgroups: Path, own_groups: Path) -> Iterator[float]:
    """In cores, of all groups of this process and of their parents; no file says nothing."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        mounts = [cgroups / controllers, cgroups / "cpu"] if controllers else [cgroups, cgroups / "unified"]
        # A container may show its own group where the root of all groups is elsewhere.
        parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
        for mount in mounts:
            for depth in range(len(parts) + 1):
                yield from _quota(mount.joinpath(*parts[:depth]))


def _quota(group: Path) -> Iterator[float]:
    """Quota of one group, if it has one."""
    with contextlib.suppress(OSError, ValueError):  # version 2: "max 100000" where there is none
        quota, period = (group / "cpu.max").read_text().split()
        yield int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):  # version 1: -1 where there is none
        quota_us = int((group / "cpu.cfs_quota_us").read_text())
        period_us = int((group / "cpu.cfs_period_us").read_text())
        if quota_us > 0:
            yield quota_us / period_us
