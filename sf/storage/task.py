"""Whether two starts of a run have the same task, so that their episodes and scores can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TASK = "env_kwargs", "max_episode_steps"
"""Flags of the run that change what its environment, which is the same otherwise, asks for."""


def changes_of_task(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Those of the flags in which two descriptions of a run differ; one that only one of them has does not count."""
    earlier, later = before["config"]["run"], now["config"]["run"]
    return [name for name in TASK if name in earlier and _meaning(earlier[name]) != _meaning(later[name])]


def has_score(data: Mapping[str, Any], description: Mapping[str, Any]) -> bool:
    """Whether the score in the data of a checkpoint can be compared with those of a run of this description."""
    before, now = (each["config"]["run"].get("score", "reward") for each in (data, description))
    return data["reward"] is not None and before == now and not changes_of_task(data, description)


def _meaning(value: Any) -> Any:
    """The form of a flag that is compared."""
    return json.loads(value) if isinstance(value, str) else value
