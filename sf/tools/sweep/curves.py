"""What a run of a sweep has reached on its way, from the curves that it writes."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

REWARD = "reward/reward"
"""The curve of the objective ``reward``."""
NUM_STEPS = 20
"""Places at which runs are compared, evenly over a run."""


class Axis(NamedTuple):
    """How far a run is."""

    unit: Literal["frames", "seconds"]
    end: float
    """End of a whole run."""


def values_at_steps(directory: Path, objective: str, axis: Axis) -> dict[int, float]:
    """The objective at each step that a run has passed; empty before the first one.

    Args:
        directory: of the run.
        objective: ``reward``, averaged over policies, or a scalar of metrics.jsonl of policy 0.
        axis: step s of `NUM_STEPS` is at the share s / NUM_STEPS of it.
    """
    return at_steps(_points(directory / "metrics.jsonl", objective, axis), axis.end)


def at_steps(points: Iterable[tuple[float, float | None]], end: float) -> dict[int, float]:
    """The value of the first point at or beyond each step.

    Args:
        points: place, and the value that is known there, if there is one.
        end: of the axis.
    """
    found: dict[int, float] = {}
    step = 1
    for place, value in points:
        while step <= NUM_STEPS and place >= step * end / NUM_STEPS:
            if value is not None:
                found[step] = value
            step += 1
    return found


def _points(path: Path, objective: str, axis: Axis) -> Iterator[tuple[float, float | None]]:
    tag = REWARD if objective == "reward" else objective
    frames: dict[int, float] = {}
    values: dict[int, float] = {}
    first_s = None
    for point in _lines(path):
        policy_id, value = point["policy_id"], point.get(tag)
        first_s = point["time_s"] if first_s is None else first_s
        frames[policy_id] = point["frames"]
        if value is not None and math.isfinite(value) and (policy_id == 0 or objective == "reward"):
            values[policy_id] = float(value)
        place = sum(frames.values()) if axis.unit == "frames" else point["time_s"] - first_s
        yield place, statistics.fmean(values.values()) if values else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):  # a line that is not finished
                yield json.loads(line)
