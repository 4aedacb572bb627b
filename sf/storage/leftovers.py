"""What saves and removals of checkpoints leave behind that did not finish: never read, and removed at the next save."""

from __future__ import annotations

import shutil
from pathlib import Path

INCOMING, OUTGOING = ".incoming-", ".outgoing-"


def collect_leftovers(directory: Path) -> None:
    """Removes them from a directory of checkpoints, which has one writer."""
    for path in directory.iterdir():
        if path.name.startswith((INCOMING, OUTGOING)) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def collect_all_leftovers(experiment: Path) -> None:
    """The same for all policies of an experiment, none of whose learners is left."""
    places = [path.parent for name in (INCOMING, OUTGOING) for path in experiment.glob(f"checkpoint_p*/**/{name}*")]
    for directory in set(places):
        collect_leftovers(directory)
