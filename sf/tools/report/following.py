"""A page that is written anew as long as one of its runs goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sf.errors import ExperimentError
from sf.storage.experiment import MARKER, listed
from sf.storage.runs import state_of
from sf.tools.report.runs import read_run

EVERY_S = 10
"""Seconds between two pages, and after which a browser loads them. Reading a long run takes about one."""


LOOK_S = 1.0
"""Seconds between two looks for the first curves."""


def wait_for_curves(places: Sequence[Path], wait: Callable[[float], object] = time.sleep) -> None:
    """Waits as long as runs go on that have no curves yet.

    Args:
        places: directories that may be those of runs.
        wait: for so many seconds.
    """
    has_told = False
    while waiting := [place for place in places if _will_have_curves(place)]:
        if not has_told:
            has_told = True
            print(f"The first curves of {listed([place.name for place in waiting])} are waited for.", flush=True)
        wait(LOOK_S)


def _will_have_curves(place: Path) -> bool:
    if not (place / MARKER).is_file() or state_of(place, True, {}) != "running":
        return False
    try:
        read_run(place)
    except ExperimentError:
        return True
    return False


def follow(lives: bool, write: Callable[[int | None], bool], wait: Callable[[float], object] = time.sleep) -> None:
    """Writes pages until no run goes on any more, or until Ctrl-C; the last one is not loaded again.

    Args:
        lives: whether a run of the page that is there goes on.
        write: writes a page that is loaded again after so many seconds, None for one that is not; returns whether a
            run goes on.
        wait: for so many seconds.
    """
    try:
        while lives:
            wait(EVERY_S)
            lives = write(EVERY_S)
    finally:
        write(None)


@contextlib.contextmanager
def in_one_step(page: Path) -> Iterator[Path]:
    """A path to write to, which becomes the page when it is complete: a browser may load it at any moment."""
    incoming = page.with_name(f".{page.name}.incoming")
    try:
        yield incoming
        incoming.replace(page)
    finally:
        incoming.unlink(missing_ok=True)
