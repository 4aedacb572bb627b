"""A litmus test of words in shared memory: two processes hammer every hand-over, and nothing may be torn or old."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Iterator, Sequence

from sf.machine.kernel import is_linux
from sf.tools.doctor.findings import Finding
from sf.tools.doctor.litmus import LITMUSES, Litmus, Reads, Stop

WITHIN_S = 30.0
"""Time for the other process to begin and to end."""
END_S = 5.0
"""Time for the other process to end, once it has nothing to do."""
ADVICE = "Use --serial_mode=True on this machine, and report it"


def handovers(seconds: float) -> Iterator[Finding]:
    """Hammers all hand-overs, for so long together."""
    if not is_linux():
        yield Finding("hand-overs", "note", "not tried, because all runs here have one process")
        return
    litmuses, stop = [make() for make in LITMUSES], Stop()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    other = context.Process(target=_take_over, args=(litmuses, stop, there), daemon=True)
    other.start()
    there.close()  # else the end of the other process would not be seen here
    all_reads: dict[str, Reads] = {}
    try:
        if not here.poll(WITHIN_S):
            yield Finding("hand-overs", "fail", f"the other process did not begin within {WITHIN_S:.0f} s")
            return
        here.recv()
        for litmus in litmuses:
            own = hammer(litmus, seconds / len(litmuses), stop, here)
            if not here.poll(WITHIN_S):
                yield Finding("hand-overs", "fail", f"{litmus.name}: the other process did not end", ADVICE)
                return
            seen = here.recv()
            if isinstance(seen, str):
                yield Finding("hand-overs", "fail", f"{litmus.name}: {seen}", ADVICE)
                return
            all_reads[litmus.name] = own.and_those(seen)
    except EOFError:
        other.join(WITHIN_S)
        yield Finding("hand-overs", "fail", f"the other process has ended with exit code {other.exitcode}", ADVICE)
        return
    finally:
        other.join(END_S)
        if other.is_alive():
            other.kill()
            other.join()
    for name, reads in all_reads.items():
        if reads.torn or reads.backwards or not reads.number:
            found = f"{name}: of {reads.number:,} reads {reads.torn:,} were torn and {reads.backwards:,} went backwards"
            yield Finding("hand-overs", "fail", found, ADVICE)
            return
    counts = ", ".join(f"{name} {reads.number:,}" for name, reads in all_reads.items())
    yield Finding("hand-overs", "ok", f"reads in {seconds:g} s, none torn or old: {counts}")


def hammer(litmus: Litmus, seconds: float, stop: Stop, begin: multiprocessing.connection.Connection) -> Reads:
    """Hands over for so long, then ends the litmus; returns what was seen of answers."""
    stop.set(False)
    begin.send(None)
    end_s = time.monotonic() + seconds
    try:
        return litmus.hand_over(lambda: time.monotonic() < end_s)
    finally:
        stop.set(True)


def _take_over(litmuses: Sequence[Litmus], stop: Stop, pipe: multiprocessing.connection.Connection) -> None:
    pipe.send(None)
    for litmus in litmuses:
        pipe.recv()
        try:
            pipe.send(litmus.take_over(stop.go_on))
        except Exception as error:  # of any kind, because what is torn may mean anything
            pipe.send(f"{type(error).__name__}: {error}")
            return
