"""What a run has learned and no checkpoint holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sf.storage.names import SPARE, frames_of, newest_in


def frames_not_saved(directory: Path, frames: Sequence[int]) -> int:
    """Frames that policies have learned from beyond their newest checkpoints, by the names of these.

    Args:
        directory: of the run.
        frames: that each policy has learned from.

    Raises:
        OSError: the directory cannot be read.
    """
    return sum(max(0, learned - _saved(directory / f"checkpoint_p{policy}")) for policy, learned in enumerate(frames))


def _saved(directory: Path) -> int:
    found = [newest_in(place) for place in (directory, *(directory / name for name in SPARE))]
    return max((frames_of(path) for path in found if path), default=0)
