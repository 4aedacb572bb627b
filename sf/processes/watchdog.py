"""Ends what children started when the supervisor is killed: simulators, compilers. No parent-death signal reaches them.

Run as a script, without packages. Its standard input is held open by the supervisor alone. Lines on it name the process
groups of workers, with a minus once they are gone; its end without a last word means that the supervisor is no more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

SCANS = 5
"""One scan can miss what was being started."""
LONGEST_EXEC_S = 0.5
"""In which a process is expected to have begun a program."""
MOST_BYTES = 2**22
"""Of the environment of a process."""


def main(mark: str) -> None:
    """Waits for the end of the supervisor; `mark` is what the environment of its simulators contains."""
    os.setpgid(0, 0)  # a signal to the group of the supervisor must not reach this process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        if line.strip() == "done":
            return
        if line.startswith("-"):
            groups.discard(int(line[1:]))
        else:
            groups.add(int(line))
    for _ in range(SCANS):
        for pid in left_behind(mark, groups):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def left_behind(mark: str, groups: set[int]) -> Iterator[int]:
    """Processes with this mark in their environment, or in one of these groups of this session."""
    session = os.getsid(0)
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                pid = int(name)
                if is_marked(pid, mark) or (os.getpgid(pid) in groups and os.getsid(pid) == session):
                    yield pid


def is_marked(pid: int, mark: str) -> bool:
    """Whether the environment that a process was started with contains the mark; False for those of other users.

    Waits for one that is beginning a program at this moment, which has no environment yet.
    """
    deadline = time.monotonic() + LONGEST_EXEC_S
    with contextlib.suppress(OSError):
        while not (environment := _read(pid, "environ")) and _is_unsettled(pid) and time.monotonic() < deadline:
            time.sleep(0.0005)
        return mark.encode() in environment
    return False


def _is_unsettled(pid: int) -> bool:
    """Whether it lives and another look at its environment may find one, which the kernel has put there last of all."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()  # proc(5), from the third one on
    memory, code_end, begin, end = (int(fields[number - 3]) for number in (23, 27, 50, 51))
    return memory > 0 and (code_end == 0 or end > begin)


def _read(pid: int, name: str) -> bytes:
    """In one piece, since a program that begins between two would give the end of another text."""
    file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    try:
        return os.read(file, MOST_BYTES)
    finally:
        os.close(file)


if __name__ == "__main__":
    main(sys.argv[1])
