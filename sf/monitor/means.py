"""Means of numbers that an environment or a program has reported."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean


def mean_of(values: Iterable[float]) -> float:
    """The mean, of one value at least; nan for infinities of both signs."""
    values = list(values)
    try:
        return fmean(values)
    except OverflowError:  # the sum is too large for a number
        return math.fsum(value / len(values) for value in values)
    except ValueError:
        return math.nan
