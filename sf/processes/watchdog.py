"""Ends what children started when the supervisor is killed: simulators, compilers. No parent-death signal reaches them.

Run as a script, without packages. The supervisor alone holds its standard input open, whose end without a last word
means that the supervisor is no more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

SCANS = 5
"""One scan can miss a process that is being born, or begins a program and has no environment for a moment."""


def main(mark: str) -> None:
    """Waits for the end of the supervisor; `mark` is what the environment of all that its children start contains."""
    os.setpgid(0, 0)  # a signal to the group of the supervisor must not reach this process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.read():
        return
    for _ in range(SCANS):
        for name in os.listdir("/proc"):
            if name.isdigit() and is_marked(int(name), mark):
                with contextlib.suppress(OSError):
                    os.kill(int(name), signal.SIGKILL)
        time.sleep(0.02)


def is_marked(pid: int, mark: str) -> bool:
    """Whether the environment that a process was started with contains the mark; False for those of other users."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environment:
        return mark.encode() in environment.read()
    return False


if __name__ == "__main__":
    main(sys.argv[1])
