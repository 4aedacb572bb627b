"""Waking a process: an eventfd that says "look at the shared words"; a pipe where the system has no eventfd.

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

PIPE_BYTES = 1 << 16
"""Rings that a pipe holds at most."""


class Doorbell:
    """One per process; any process may ring, only the owner waits."""

    def __init__(self, fd: int | None = None):
        self._pipe: int | None = None
        """The end that is written to, where the system has no eventfd."""
        if fd is not None:
            self.fd = fd
        elif hasattr(os, "eventfd"):
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.fd, self._pipe = os.pipe()
            for end in (self.fd, self._pipe):
                os.set_blocking(end, False)
        self._poll = select.poll()  # not select, which knows descriptors below 1024 only
        self._poll.register(self.fd, select.POLLIN)

    def ring(self) -> None:
        if self._pipe is None:
            os.eventfd_write(self.fd, 1)
            return
        with contextlib.suppress(BlockingIOError):  # a pipe that is full has rung
            os.write(self._pipe, b"!")

    def wait(self, timeout_s: float) -> bool:
        """Sleeps until a process rings, at most `timeout_s` seconds; says whether one did."""
        if not self._poll.poll(1000 * timeout_s):  # rounded up to a whole millisecond
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Forgets the rings so far."""
        with contextlib.suppress(BlockingIOError):
            if self._pipe is None:
                os.eventfd_read(self.fd)
            else:
                os.read(self.fd, PIPE_BYTES)

    def fileno(self) -> int:
        return self.fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _doorbell_from_parent, (reduction.DupFd(self.fd),)

    def __del__(self) -> None:
        os.close(self.fd)
        if self._pipe is not None:
            os.close(self._pipe)


def _doorbell_from_parent(fd: Any) -> Doorbell:
    return Doorbell(fd.detach())
