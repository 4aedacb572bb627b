"""Ranges of numbers, written into the type of a configuration field: ``Annotated[int, AT_LEAST_1]``."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, without the ends that are `open`."""

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        """Whether a configuration may hold this value."""
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        """The range in words, to follow "must be"."""
        above = f"{'above' if self.open_low else 'at least'} {self.low:.10g}"
        below = f"{'below' if self.open_high else 'at most'} {self.high:.10g}"
        return above if self.high == math.inf else f"{above} and {below}"


AT_LEAST_0 = Range(0)
AT_LEAST_1 = Range(1)
ABOVE_0 = Range(0, open_low=True)
UNIT = Range(0, 1)
BELOW_1 = Range(0, 1, open_high=True)
SEED = Range(0, 2**32 - 1)
