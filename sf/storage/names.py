"""The names of checkpoints and of their files, for processes that do without torch."""

from __future__ import annotations

import re
from pathlib import Path

BEGINNING = "checkpoint_"
"""First part of the names of all checkpoints."""
NAME = re.compile(r"checkpoint_(\d{9,18})_(\d{1,18})", re.ASCII)
"""Optimizer steps and frames."""
OF_POLICY = re.compile(r"checkpoint_p(\d+)")
"""The directory of the checkpoints of a policy."""
BEST, MILESTONES, POOL = "best", "milestones", "pool"
"""Directories beside the checkpoints of a policy; the last one has the snapshots of self-play."""
SPARE = BEST, MILESTONES, POOL
"""Those from which a run goes on where it has nothing else."""
TENSORS = "tensors.safetensors"
STATE = "state.json"
FILMS = "films"
"""Directory of the films of a run, each of which is named after its frames."""


def newest_in(directory: Path) -> Path | None:
    """The checkpoint with the most optimizer steps, whole or not."""
    found = [(int(match[1]), int(match[2]), path) for path, match in _named(directory)]
    return max(found)[2] if found else None


def list_checkpoints(directory: Path) -> list[Path]:
    """Everything named like a checkpoint, oldest version first, not verified; links and other names do not count."""
    found = []
    if directory.is_dir():
        for path in directory.iterdir():
            match = NAME.fullmatch(path.name)
            if match and path.is_dir() and not path.is_symlink():
                found.append((int(match[1]), int(match[2]), path))
    return [path for _, _, path in sorted(found)]


INCOMING_FILM = ".incoming.mp4"
"""A film that is being made, in the directory of films."""


def next_film(run: Path, every: int) -> int:
    """Frames at which a run that films an episode every so many frames makes its next film."""
    made = [int(path.stem) for path in run.glob(f"{FILMS}/*.mp4") if path.stem.isdecimal()]
    return (max(made, default=0) // every + 1) * every


def policy_of(checkpoint: Path) -> int:
    """The number of the policy in whose directory a checkpoint is; -1 elsewhere."""
    found = [int(match[1]) for part in checkpoint.absolute().parts if (match := OF_POLICY.fullmatch(part))]
    return found[-1] if found else -1


def frames_of(path: Path) -> int:
    """The frames that a checkpoint has in its name."""
    return int(path.name.rpartition("_")[2])


def _named(directory: Path) -> list[tuple[Path, re.Match[str]]]:
    paths = directory.glob(f"{BEGINNING}*")
    return [(path, match) for path in paths if (match := NAME.fullmatch(path.name)) is not None]
