"""Shared memory: one nameless block that holds every array the processes share.

The block is a memfd, or a temporary file without a name where the system has no memfd. Nothing can be left behind or
removed by name. The kernel frees the block when the last process that maps it ends, in any way. All of it is allocated
up front, because memory that is only promised ends in SIGBUS at the first write to a full file system.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
import numpy.typing as npt

from sf.errors import ResourceError

Array = npt.NDArray[Any]

CACHE_LINE = 64
"""Arrays start on their own cache line, so that writers of neighbouring arrays do not slow each other down."""


@dataclass(frozen=True)
class Field:
    """Shape, numpy dtype name and poison of one shared array; a value that was never written shows the poison."""

    shape: tuple[int, ...]
    dtype: str
    fill: float = 0

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class SharedBlock:
    """A nameless file in memory that travels to a child process while it is being spawned."""

    def __init__(self, fd: int | None = None):
        self.fd = _nameless_file() if fd is None else fd

    def allocate(self, num_bytes: int, others: int = 0) -> None:
        """Makes the block `num_bytes` long, backed by real memory.

        Args:
            num_bytes: of the block.
            others: bytes that the processes of the run will need beside it.

        Raises:
            ResourceError: the machine cannot give that much.
        """
        from sf.machine.limits import ensure_file_size  # processes that only map do not need them
        from sf.machine.memory import available_memory

        available, of_what = available_memory()  # asking for more would wake the out-of-memory killer
        refusal = (
            f"Shared memory needs {num_bytes / 2**20:,.0f} MiB, the processes need about {others / 2**20:,.0f} MiB, "
            f"and the {of_what} has {available / 2**20:,.0f} MiB left. Use a smaller --rollout, --num_envs_per_worker, "
            "--num_workers or --batch_size."
        )
        if num_bytes + others > available:
            raise ResourceError(refusal)
        ensure_file_size(num_bytes, ", or use a smaller --rollout, --num_envs_per_worker or --num_workers")
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.fd, 0, num_bytes)
            else:
                os.ftruncate(self.fd, num_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            raise ResourceError(refusal) from error

    @property
    def num_bytes(self) -> int:
        return os.fstat(self.fd).st_size

    def map(self) -> mmap.mmap:
        return mmap.mmap(self.fd, self.num_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _block_from_parent, (reduction.DupFd(self.fd),)

    def __del__(self) -> None:
        os.close(self.fd)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sf")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _block_from_parent(fd: Any) -> SharedBlock:
    return SharedBlock(fd.detach())


class Arena:
    """Named numpy arrays over one shared block; every process that gets the arena sees the same memory."""

    def __init__(self, fields: Mapping[str, Field], block: SharedBlock | None = None, others: int = 0):
        """Allocates memory, or maps that of a block.

        Args:
            fields: the arrays.
            block: where they are already, None to make one.
            others: bytes that must be left beside it.

        Raises:
            ResourceError: the machine cannot give that much.
        """
        self.fields = dict(fields)
        offsets, end = {}, 0
        for name, field in self.fields.items():
            offsets[name] = end
            end += -(-field.num_bytes // CACHE_LINE) * CACHE_LINE
        fresh = block is None
        self.block = block or SharedBlock()
        if fresh:
            self.block.allocate(max(end, 1), others)
        self.memory = self.block.map()
        """All of it, as bytes."""
        self.arrays: dict[str, Array] = {
            name: np.frombuffer(self.memory, field.dtype, math.prod(field.shape), offsets[name]).reshape(field.shape)
            for name, field in self.fields.items()
        }
        if fresh:
            for name, field in self.fields.items():
                if field.fill != 0:  # the kernel gives zeros
                    self.arrays[name].fill(field.fill)

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    @property
    def num_bytes(self) -> int:
        return self.block.num_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return Arena, (self.fields, self.block)
