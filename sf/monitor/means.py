"""Means of numbers that an environment or a program has reported."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean


def mean_of(values: Iterable[float]) -> float:
    """The mean, of one value at least; infinite where the sum is too large for a number."""
    try:
        return fmean(values)
    except (OverflowError, ValueError):
        return math.inf
