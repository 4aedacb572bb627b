"""Imports of large packages."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Sequence


def load(modules: Sequence[str], freeze: bool = False) -> None:
    """Imports modules without collecting garbage, of which they make hardly any: torch takes a tenth less time.

    Args:
        modules: their names.
        freeze: has the collector never look at what exists then, which takes it 0.2 s with torch. For processes in
            which no objects of others are.

    Raises:
        Exception: whatever one of them raises.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        if freeze:
            gc.freeze()
        if was_enabled:
            gc.enable()
