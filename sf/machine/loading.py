"""Imports of large packages."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Sequence


def load(modules: Sequence[str]) -> None:
    """Imports modules without collecting garbage, of which they make hardly any: torch takes a tenth less time.

    Raises:
        Exception: whatever one of them raises.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        if was_enabled:
            gc.enable()
