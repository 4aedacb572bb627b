"""The entry points of installed packages, read again only where a package may have come or gone."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any


def entry_points(group: str) -> Iterable[importlib.metadata.EntryPoint]:
    """Those of one group, as of `importlib.metadata.entry_points`, which opens a file of each package every time."""
    found: Iterable[importlib.metadata.EntryPoint] = _all(tuple((folder, _changed_ns(folder)) for folder in sys.path))
    return [point for point in found if point.group == group]


@lru_cache(maxsize=1)
def _all(folders: tuple[tuple[str, int], ...]) -> Iterable[importlib.metadata.EntryPoint]:
    groups: Any = importlib.metadata.entry_points()  # a mapping by group until Python 3.11
    return [point for group in groups.groups for point in groups.select(group=group)]


def _changed_ns(folder: str) -> int:
    """When something was installed there last; 0 for a folder that is not there."""
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0
