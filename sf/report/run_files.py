"""The files of a run, read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sf.errors import ExperimentError


@dataclass(frozen=True)
class RunFiles:
    """One policy of a run."""

    name: str
    points: list[dict[str, Any]]
    """Of metrics.jsonl, in their order."""

    def curve(self, tag: str) -> tuple[list[int], list[float]]:
        """Frames and values, without those that are no numbers."""
        there = [point for point in self.points if point.get(tag) is not None]
        return [point["frames"] for point in there], [point[tag] for point in there]

    def tags(self, prefix: str) -> dict[str, str]:
        """What comes after the prefix, to the whole tag, of all tags that begin with it and ever had a number."""
        there = {tag for point in self.points for tag, value in point.items() if value is not None}
        return {tag.removeprefix(prefix): tag for tag in there if tag.startswith(prefix)}

    def total(self, tag: str) -> list[int]:
        """A histogram of the whole run: the counts of 0, 1, 2, ... of all points."""
        counts: list[int] = []
        for _, each in zip(*self.curve(tag), strict=True):
            counts += [0] * (len(each) - len(counts))  # type: ignore[arg-type]  # a list, where a tag is a histogram
            for number, count in enumerate(each):  # type: ignore[arg-type, var-annotated]
                counts[number] += count
        return counts


def read_run(directory: Path, policy_id: int = 0) -> RunFiles:
    """The curves of one policy; a last line that is not finished yet is left out.

    Raises:
        ExperimentError: there are none.
    """
    path = directory / "metrics.jsonl"
    if not path.is_file():
        raise ExperimentError(f"{path.absolute()} is missing. It comes with the first curves of a run.")
    points = [point for line in path.read_text(encoding="utf-8").splitlines() if (point := _parsed(line))]
    points = [point for point in points if point["policy_id"] == policy_id]
    if not points:
        raise ExperimentError(f"{path.absolute()} has no curves of policy {policy_id}.")
    return RunFiles(directory.name, points)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        point: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return point
