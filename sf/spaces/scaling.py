"""The numbers between -1 and 1 as those between the bounds of an action."""

from __future__ import annotations

from typing import Any

import numpy as np

BOUNDLESS = 1e18
"""Bounds of a Box that are this far apart limit nothing, such as those of the largest float32."""


def scale_of(low: Any, high: Any) -> tuple[Any, Any]:
    """Middle and half that map -1 to 1 to bounds, by ``middle + half * number``; 0 and 1 without finite bounds.

    Args:
        low, high: of the same shape.

    Returns:
        middle, half: float64 of that shape.
    """
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        is_bounded = (high > low) & (high - low < BOUNDLESS)
        return np.where(is_bounded, (low + high) / 2, 0.0), np.where(is_bounded, (high - low) / 2, 1.0)
