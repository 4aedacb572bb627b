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
    return _all((*((folder, _changed_ns(folder)) for folder in sys.path),)).select(group=group)


@lru_cache(maxsize=1)
def _all(folders: tuple[tuple[str, int], ...]) -> Any:
    return importlib.metadata.entry_points()


def _changed_ns(folder: str) -> int:
    """When something was installed there last; 0 for a folder that is not there."""
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0
