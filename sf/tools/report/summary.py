"""The parts of summary.json that a report reads. Another program may have written anything there."""

from __future__ import annotations

import math
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number, and no boolean."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def is_histogram(value: Any) -> TypeGuard[list[int]]:
    """Whether it is a list of counts."""
    return isinstance(value, list) and all(type(count) is int and 0 <= count < 2**63 for count in value)


def checked(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary without fields of a wrong type; policies keep their places."""
    found = {name: value for name, value in summary.items() if name not in _CHECKS}
    policies = summary.get("policies")
    found["policies"] = [_policy(each) for each in policies] if isinstance(policies, list) else []
    found |= {name: summary[name] for name in ("wall_time_s", "fps") if is_number(summary.get(name))}
    found["faults"] = _numbers(summary.get("faults"))
    found["versions"] = {name: each for name, each in _dict(summary.get("versions")).items() if isinstance(each, str)}
    found["seconds"] = {process: _numbers(each) for process, each in _dict(summary.get("seconds")).items()}
    return found


_CHECKS = "policies", "wall_time_s", "fps", "faults", "versions", "seconds"


def _policy(value: Any) -> dict[str, Any]:
    numbers = "frames", "reward", "policy_version"
    found = {name: each for name, each in _dict(value).items() if name not in numbers or is_number(each)}
    return found | {"lag_of_run": _numbers(found.get("lag_of_run"))}


def _numbers(value: Any) -> dict[str, float]:
    return {name: each for name, each in _dict(value).items() if is_number(each)}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
