"""Numbers that an environment reports in any step of an episode, brought down to one number per episode.

    info["metrics"] = {"speed/mean": 0.2, "hits/sum": 1, "height/max": 3.5, "level/last": 2}

The end of the name says how. Names without such an end are read in the last step only, see `sf.envs.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sf.envs.numbers import number_of
from sf.envs.statistics import METRICS

REDUCTIONS = "mean", "sum", "max", "last"
_ENDINGS = tuple(f"/{reduction}" for reduction in REDUCTIONS)


class StepMetrics:
    """Keeps them for each row from the beginning of an episode to its end."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, _Reduced]] = {}

    def add(self, row: int, metrics: Any) -> None:
        """Takes in those of one step; anything but a dict is told of when it stands in the last step."""
        for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
            if isinstance(name, str) and name.endswith(_ENDINGS):
                own = self._rows.setdefault(row, {})
                if name not in own:
                    own[name] = _Reduced(name.rpartition("/")[2])
                own[name].add(value)

    def finish(self, row: int, info: dict[Any, Any]) -> None:
        """Writes the numbers of the episode of a row into the info of its last step, and forgets them."""
        own, last = self._rows.pop(row, None), info.get(METRICS, {})
        if own and isinstance(last, Mapping):
            info[METRICS] = {**last, **{name: reduced.value for name, reduced in own.items()}}

    def forget(self, rows: Iterable[int]) -> None:
        """New episodes begin in these rows, and the steps before count for none."""
        for row in rows:
            self._rows.pop(row, None)


class _Reduced:
    """One number over the steps of an episode; a value that is no number stays, so that it is told of at the end."""

    def __init__(self, reduction: str) -> None:
        self._reduction = reduction
        self._count, self._total, self._most, self._last = 0, 0.0, -math.inf, math.nan
        self._refused: Any = None

    def add(self, value: Any) -> None:
        """A step without the number has None or nan."""
        number = number_of(value)
        if number is None or math.isinf(number):
            self._refused = value
        elif not math.isnan(number):
            self._count += 1
            self._total += number
            self._most = max(self._most, number)
            self._last = number

    @property
    def value(self) -> Any:
        """The number of the episode; None if no step has one."""
        if self._refused is not None or not self._count:
            return self._refused
        match self._reduction:
            case "mean":
                return self._total / self._count
            case "sum":
                return self._total
            case "max":
                return self._most
            case _:
                return self._last
