"""Operating-system signals: a handler only takes a note and wakes the main loop, which acts on it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from sf.errors import ExitCode

STOP_SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1
"""SIGHUP comes when the terminal is gone, or what has started the run; SIGUSR1 from a scheduler."""
URGENT_IF_REPEATED = signal.SIGINT, signal.SIGTERM
"""A terminal that closes sends SIGHUP by the kernel, by its shell and by its end, which is one wish to stop."""
SLURM_JOB = "SLURM_JOB_ID"
"""Environment variable in jobs of Slurm, which sends SIGTERM before the time of a job is over, or to make room."""


def code_after(number: int) -> ExitCode:
    """The exit code of a run that a stop signal has ended."""
    if number == signal.SIGUSR1 or (number == signal.SIGTERM and os.environ.get(SLURM_JOB)):
        return ExitCode.REQUEUE
    return ExitCode.SIGINT if number == signal.SIGINT else ExitCode.SIGTERM


class Signals:
    """The stop signals received so far."""

    def __init__(self, second_one_exits: bool, parent: int | None, has_launcher: bool = False) -> None:
        self.second_one_exits, self._has_launcher = second_one_exits, has_launcher
        self.received: list[int] = []
        self._parent = parent
        self._noted: Sequence[signal.Signals] = ()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def begin(self) -> dict[signal.Signals, Any]:
        """Installs the handlers; returns those that were there."""
        self._noted = _wanted()
        return {number: signal.signal(number, self.note) for number in self._noted}

    @property
    def first(self) -> signal.Signals | None:
        """The one that asked to stop in order."""
        return signal.Signals(self.received[0]) if self.received else None

    @property
    def is_urgent(self) -> bool:
        """Whether a second signal asks for the end: stop at once."""
        return self.times_asked > 1

    @property
    def times_asked(self) -> int:
        """How many of the signals are such that the second one is urgent."""
        return sum(number in URGENT_IF_REPEATED for number in self.received)

    def look_for_parent(self) -> bool:
        """Whether the process that has started this one is gone, which counts as a SIGHUP; True once."""
        if self._parent is None or os.getppid() == self._parent:
            return False
        self._parent = None
        self.received.append(signal.SIGHUP)
        return True

    def take_back(self) -> bool:
        """Puts back handlers that another package of this process has replaced; whether there were some."""
        taken = [number for number in self._noted if signal.getsignal(number) != self.note]
        for number in taken:
            signal.signal(number, self.note)
        if taken:
            signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        return bool(taken)

    def fileno(self) -> int:
        """Readable when a signal has arrived."""
        return self._reader.fileno()

    def clear(self) -> None:
        """Forgets the wake-up, not the signal."""
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if self._has_launcher and number == signal.SIGTERM and number in self.received:
            return  # torchrun repeats it when another rank has followed; in the end it kills
        self.received.append(number)
        if self.times_asked > (1 if self.second_one_exits else 2):
            # This process itself hangs; the kernel and the watchdog do the rest.
            os._exit(code_after(self.received[0]))

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def parent() -> int | None:
    """The process that has started this one; None where nohup or setsid has cut the tie."""
    is_tied = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and os.getsid(0) != os.getpid()
    return os.getppid() if is_tied else None


def early_signals() -> list[int]:
    """From now on stop signals raise at once, while there is nothing to save; returns the list of them.

    It is not always empty afterwards: an exception of a handler is lost if it interrupts a destructor or the like.
    """
    received: list[int] = []
    raised: list[BaseException] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raised.append(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(code_after(number)))
        raise raised[-1]

    def tell_lost(lost: sys.UnraisableHookArgs) -> None:
        if not any(lost.exc_value is one for one in raised):  # of those the signal is noted
            sys.__unraisablehook__(lost)

    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = tell_lost
    for number in _wanted():
        signal.signal(number, note)
    # It asks roles for their stacks. Slurm sends it to a whole job, of which this process is a part.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    return received


def _wanted() -> list[signal.Signals]:
    """The stop signals, but for a SIGHUP that is ignored because of nohup, and then also a SIGINT that is.

    A shell without jobs has all that it starts in the background ignore SIGINT; only with nohup is that a purpose.
    """
    is_ignored = {number: signal.getsignal(number) is signal.SIG_IGN for number in (signal.SIGHUP, signal.SIGINT)}
    return [number for number in STOP_SIGNALS if not (is_ignored[signal.SIGHUP] and is_ignored.get(number))]


@contextlib.contextmanager
def noted_signals(
    second_one_exits: bool, earlier: Sequence[int] = (), started_by: int | None = None, has_launcher: bool = False
) -> Iterator[Signals]:
    """Notes stop signals inside the block; the handlers that were there come back after it.

    Args:
        second_one_exits: for a program that may hang itself.
        earlier: signals that count as well.
        started_by: the process whose end counts as a signal.
        has_launcher: several SIGTERM count as one, because a launcher sends it, and others do too.
    """
    signals = Signals(second_one_exits, started_by, has_launcher)
    signals.received += earlier
    if getattr(sys.unraisablehook, "__module__", "") == __name__:
        sys.unraisablehook = sys.__unraisablehook__  # nothing is raised from here on
    before = signals.begin()
    wakeup = signal.set_wakeup_fd(signals._writer.fileno(), warn_on_full_buffer=False)
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.close()
