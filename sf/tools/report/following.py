"""A page that is written anew as long as one of its runs goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

EVERY_S = 10
"""Seconds between two pages, and after which a browser loads them. Reading a long run takes about one."""


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
