"""A litmus test of words in shared memory: one process publishes, another one reads, and nothing may be torn or old.

Published weights are the hand-over with the most data behind a word. Every number of a version is that version, so a
reader that takes a word before its data, or data of two versions, sees it.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sf.machine.kernel import is_linux
from sf.shared.arena import Array, SharedBlock
from sf.shared.weights import NOTHING_PUBLISHED, PublishedWeights
from sf.tools.doctor.findings import Finding

SIZE = 4096
WITHIN_S = 30.0
"""Time for another process to begin and to end."""


class Reads(NamedTuple):
    """What a reader has seen."""

    number: int
    torn: int
    """Copies with numbers of another version than the one that they were accepted as."""
    backwards: int
    """Copies that were older than the one before."""


def handovers(seconds: float) -> Iterator[Finding]:
    """Publishes as often as it can for so long, while another process reads."""
    if not is_linux():
        yield Finding("hand-overs", "note", "not tried, because all runs here have one process")
        return
    block = SharedBlock()
    weights = PublishedWeights(block)
    weights.allocate(SIZE)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    reader = context.Process(target=_read, args=(block, seconds, there), daemon=True)
    reader.start()
    try:
        if not here.poll(WITHIN_S):
            yield Finding("hand-overs", "fail", f"the reading process did not begin within {WITHIN_S:.0f} s")
            return
        here.recv()
        version, end_s = 0, time.monotonic() + seconds
        while time.monotonic() < end_s:
            for _ in range(100):
                weights.publish(version, lambda buffer, version=version: buffer.fill(version))  # type: ignore[misc]
                version += 1
        if not here.poll(WITHIN_S):
            yield Finding("hand-overs", "fail", f"the reading process did not end within {WITHIN_S:.0f} s")
            return
        reads = Reads(*here.recv())
    finally:
        reader.join(1.0)
        if reader.is_alive():
            reader.kill()
    found = f"{reads.number:,} reads of {version:,} published vectors in {seconds:g} s"
    if reads.torn or reads.backwards:
        broken = f"{found}, of which {reads.torn} were torn and {reads.backwards} went backwards"
        yield Finding("hand-overs", "fail", broken, "Use --serial_mode=True on this machine, and report it")
        return
    yield Finding("hand-overs", "ok", f"{found}, none torn or old")


def _read(block: SharedBlock, seconds: float, pipe: multiprocessing.connection.Connection) -> None:
    weights, copy = PublishedWeights(block), np.zeros(SIZE, np.float32)
    pipe.send("ready")
    pipe.send(tuple(reads(weights, copy, seconds)))


def reads(weights: PublishedWeights, copy: Array, seconds: float) -> Reads:
    """Reads for so long, into a vector of the size of the weights."""
    number = torn = backwards = 0
    newest, end_s = NOTHING_PUBLISHED, time.monotonic() + seconds
    while time.monotonic() < end_s:
        if weights.version == NOTHING_PUBLISHED:
            continue
        version = weights.read(lambda buffer: np.copyto(copy, buffer))
        number += 1
        torn += bool((copy != np.float32(version)).any())
        backwards += version < newest
        newest = version
    return Reads(number, torn, backwards)
