"""Waking a process: an eventfd that says "look at the shared words".

A ring carries no data. It is remembered until the receiver has waited, so a ring between the receiver's last look and
its wait is not lost. Two rings may count as one. Ringing and waking up take the same lock of the kernel, so the woken
process sees every word that was published before the ring.
"""

from __future__ import annotations

import contextlib
import os
import select
from multiprocessing import reduction
from typing import Any


class Doorbell:
    """One per process; any process may ring, only the owner waits."""

    def __init__(self, fd: int | None = None):
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd
        self._poll = select.poll()  # not select, which knows descriptors below 1024 only
        self._poll.register(self.fd, select.POLLIN)

    def ring(self) -> None:
        os.eventfd_write(self.fd, 1)

    def wait(self, timeout_s: float) -> bool:
        """Sleeps until a process rings, at most `timeout_s` seconds; says whether one did."""
        if not self._poll.poll(1000 * timeout_s):  # rounded up to a whole millisecond
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Forgets the rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def fileno(self) -> int:
        return self.fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _doorbell_from_parent, (reduction.DupFd(self.fd),)

    def __del__(self) -> None:
        os.close(self.fd)


def _doorbell_from_parent(fd: Any) -> Doorbell:
    return Doorbell(fd.detach())
