"""Findings about the machine: processor, kernel, memory, limits, and the places where files go."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from sf.machine.cores import usable_cores
from sf.machine.kernel import is_linux
from sf.machine.limits import ensure_shared_memory, ensure_whole_words, threads_beyond_cores
from sf.machine.memory import available_memory
from sf.shared.order import DESCRIPTION
from sf.tools.doctor.findings import Finding

GIB = 2**30
SHARED_MEMORY, CPUINFO = Path("/dev/shm"), Path("/proc/cpuinfo")
LEAST_SHARED, LEAST_MEMORY, LEAST_DISK = 1 << 28, 2 * GIB, GIB
"""Bytes below which runs with pictures, runs of several processes and checkpoints do not fit."""
LEAST_FILES, LEAST_PROCESSES = 1024, 512
VECTORS = ("avx512_bf16", "avx512f", "avx2", "amx_bf16", "sve", "asimd")


def processor() -> Iterator[Finding]:
    """Model, cores and vector instructions, and how processes see each other's stores in their order."""
    try:
        text = CPUINFO.read_text()
    except OSError:
        text = ""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    words = {name.strip(): value.strip() for name, value in fields.items()}
    known = set(words.get("flags", words.get("Features", "")).split())
    vectors = ", ".join(name for name in VECTORS if name in known) or "no vector instructions known"
    cores, all_cores = usable_cores(), os.cpu_count() or 1
    model = words.get("model name", platform.processor() or platform.machine())
    found = f"{model} ({platform.machine()}), {cores} of {all_cores} cores, {vectors}, {DESCRIPTION}"
    yield Finding("processor", "ok", found)
    if cores < 2:
        yield Finding("processor", "note", "one core", "Sampling and learning take turns on it")
    if is_linux():
        ensure_whole_words()
    for warning in threads_beyond_cores(cores):
        yield Finding("threads", "note", warning)


def kernel() -> Iterator[Finding]:
    """What processes are watched with."""
    yield Finding("kernel", "ok", f"{platform.system()} {platform.release()}, {platform.libc_ver()[0] or 'libc'}")
    if not is_linux():
        yield Finding("kernel", "note", f"{sys.platform}, one process", "Use --serial_mode=True; several need Linux")
        return
    if not hasattr(os, "pidfd_open"):
        yield Finding("kernel", "fail", "no pidfd_open", "Runs of several processes need Linux 5.3 or newer")
        return
    os.close(os.pidfd_open(os.getpid()))


def memory() -> Iterator[Finding]:
    """Memory that is left, and the place of shared memory."""
    left, owner = available_memory()
    found = f"{left / GIB:.1f} GiB left of the {owner}"
    is_low = left < LEAST_MEMORY
    advice = "Use fewer --num_workers, a smaller --replay_size, or end other programs"
    yield Finding("memory", "note" if is_low else "ok", found, advice if is_low else "")
    ensure_shared_memory()
    if SHARED_MEMORY.is_dir():
        usage = shutil.disk_usage(SHARED_MEMORY)
        found = f"{SHARED_MEMORY} has {usage.free / GIB:.2f} of {usage.total / GIB:.2f} GiB left"
        is_low = usage.free < LEAST_SHARED
        advice = "Queues and gradients of several learners need it: --shm-size=1g in a container"
        yield Finding("shared memory", "note" if is_low else "ok", found, advice if is_low else "")


def limits() -> Iterator[Finding]:
    """Limits of this user that large runs meet."""
    for name, kind, least, command in (
        ("open files", resource.RLIMIT_NOFILE, LEAST_FILES, "ulimit -n"),
        ("processes", resource.RLIMIT_NPROC, LEAST_PROCESSES, "ulimit -u"),
    ):
        soft, hard = resource.getrlimit(kind)
        is_low = hard not in (resource.RLIM_INFINITY, -1) and hard < least
        found = f"{name}: {_limit(soft)}, at most {_limit(hard)}"
        yield Finding("limits", "note" if is_low else "ok", found, f"Raise it ({command})" if is_low else "")
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        yield Finding(
            "limits", "note", f"largest file: {soft / GIB:.2f} GiB", "Shared memory counts as one (ulimit -f)"
        )


def places(directory: Path) -> Iterator[Finding]:
    """Room for runs, and the folder of what is compiled.

    Args:
        directory: where runs are to be.
    """
    there = next(parent for parent in (directory.absolute(), *directory.absolute().parents) if parent.is_dir())
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding("runs", "fail", f"{there} cannot be written", "Name another place with --train_dir")
        return
    free = shutil.disk_usage(there).free
    is_low = free < LEAST_DISK
    advice = "Checkpoints of a run need some of it: choose another --train_dir"
    yield Finding("runs", "note" if is_low else "ok", f"{free / GIB:.1f} GiB left in {there}", advice if is_low else "")


def _limit(value: int) -> str:
    return "no limit" if value in (resource.RLIM_INFINITY, -1) else f"{value:,}"
