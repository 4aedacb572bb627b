"""What a sweep says of a run that lies in its directory."""

from __future__ import annotations

import json
from pathlib import Path

PRUNED = "pruned by its sweep"


def was_pruned(path: Path) -> bool:
    """Whether ``results.json`` of the sweep, if the run belongs to one, says that it was cut short as hopeless.

    Args:
        path: directory of the run, ``<sweep>/trial<number>-seed<seed>``.
    """
    try:
        trials = json.loads((path.parent / "results.json").read_bytes())["trials"]
        return any(
            path.name == f"trial{trial['trial']:03d}-seed{run['seed']}" and run["state"] == "pruned"
            for trial in trials
            for run in trial["runs"]
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False  # no sweep, or one of something else
