"""Numbers as environments and callbacks of others have them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def number_of(value: Any) -> float | None:
    """A number, a boolean or an array of one of them as a float, None as nan; None for anything else."""
    if value is None:
        return math.nan
    try:
        if isinstance(value, (bool, int, float)):
            return float(value)
        array = np.asarray(value)
        return float(array.item()) if array.size == 1 and array.dtype.kind in "biuf" else None
    except Exception:  # of the conversion of some object
        return None
