"""The files of a population in the directory of a run.

population.json    the values that each policy learns with, and the state of the rules; replaced with each decision
population.jsonl   a line for each decision
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from sf.storage.lines import keep_lines
from sf.storage.objects import json_object, parsed_object, write_object

STATE, DECISIONS = "population.json", "population.jsonl"


def read_population(directory: Path) -> dict[str, Any]:
    """The state that was written last; nothing if there is none, or if it is damaged."""
    return json_object(directory / STATE)


def values_of_policy(directory: Path, policy_id: int, names: Collection[str]) -> dict[str, float]:
    """Those of the named flags that a policy learns with by the state of the population, where it has them."""
    each = read_population(directory).get("values")
    own = each[policy_id] if isinstance(each, list) and policy_id < len(each) else {}
    found = own if isinstance(own, dict) else {}
    return {name: float(found[name]) for name in names if isinstance(found.get(name), (int, float))}


def write_population(directory: Path, state: Mapping[str, Any]) -> None:
    """Replaces the state in one step; raises OSError where the file cannot be written."""
    write_object(directory / STATE, state, is_durable=True)


def add_decision(directory: Path, decision: Mapping[str, Any]) -> None:
    """Adds a line; raises OSError where the file cannot be written."""
    with (directory / DECISIONS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(decision) + "\n")


def read_decisions(directory: Path) -> list[dict[str, Any]]:
    """All lines that are whole, in their order; nothing if there is no population."""
    try:
        lines = (directory / DECISIONS).read_bytes().splitlines()
    except OSError:
        return []
    return [found for found in map(parsed_object, lines) if _is_decision(found)]


def is_before(decision: Mapping[str, Any], frames: Sequence[int]) -> bool:
    """Whether a decision was made before the frames that its policy goes on from."""
    policy = decision["policy"]
    return bool(policy >= len(frames) or decision["frames"] <= frames[policy])


def forget_decisions(directory: Path, frames: Sequence[int]) -> None:
    """Removes the lines of decisions beyond the frames that policies go on from.

    Raises:
        OSError: the file cannot be replaced.
    """

    def is_kept(line: str) -> bool:
        found = parsed_object(line.encode())
        return not _is_decision(found) or is_before(found, frames)

    keep_lines(directory / DECISIONS, is_kept)


def _is_decision(found: Mapping[str, Any]) -> bool:
    frames = found.get("frames")
    return isinstance(frames, (int, float)) and math.isfinite(frames) and isinstance(found.get("policy"), int)
