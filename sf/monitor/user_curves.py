"""Curves ``user/<name>`` of numbers that the callbacks of a program return."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sf.envs.numbers import number_of
from sf.monitor.means import mean_of

MOST_NAMES = 100
"""Curves of a run; more come from names that hold a number, such as that of a step."""


class UserCurves:
    """Keeps the numbers of each policy until there is a point, which has their means."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        """Has no numbers yet; `tell` receives a sentence about what is left out, once for each."""
        self._tell = tell
        self._names: set[str] = set()
        self._told: set[str] = set()
        self._values: dict[int, dict[str, list[float]]] = {}

    def add(self, policy_id: int, numbers: Mapping[Any, Any]) -> None:
        """Takes in what one call of a callback has returned; a number that is nan or None is missing."""
        for name, value in numbers.items():
            if problem := self._problem(name, value):
                self._say(problem)
                continue
            self._names.add(name)
            number = number_of(value)
            if number is not None and not math.isnan(number):
                self._values.setdefault(policy_id, {}).setdefault(name, []).append(number)

    def take(self, policy_id: int) -> dict[str, float]:
        """Tag to mean since the last point; a name that no callback has returned since then has none."""
        return {f"user/{name}": mean_of(values) for name, values in self._values.pop(policy_id, {}).items()}

    def _problem(self, name: Any, value: Any) -> str:
        """A sentence about what cannot be a point of a curve; empty for what can."""
        if not isinstance(name, str) or not name.strip():
            return f"A callback returned {name!r} as the name of a number, expected a text."
        number = number_of(value)
        if number is None or math.isinf(number):
            found = f"a {type(value).__name__}" if number is None else f"{number}"
            return f"A callback returned {found} as {name!r}, expected a finite number."
        if name not in self._names and len(self._names) == MOST_NAMES:
            return f"Callbacks return more than {MOST_NAMES} names, the first of which are {sorted(self._names)[:3]}."
        return ""

    def _say(self, problem: str) -> None:
        if problem not in self._told and len(self._told) < MOST_NAMES:
            self._told.add(problem)
            self._tell(f"Warning: {problem} It is left out of the curves.")
