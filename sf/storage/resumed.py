"""Where a run goes on."""

from __future__ import annotations

from pathlib import Path

from sf.storage import sealed
from sf.storage.names import SPARE, STATE, TENSORS, frames_of, list_checkpoints


def frames_to_resume(directory: Path) -> int:
    """Frames of the newest whole checkpoint, from which its policy goes on; 0 without one.

    The best one, milestones and snapshots of self-play count where there is no other.

    Args:
        directory: with the checkpoints of one policy.
    """
    others = [_newest_whole(directory / name) for name in SPARE]
    found = _newest_whole(directory) or max((one for one in others if one), key=lambda one: one.name, default=None)
    return frames_of(found) if found else 0


def _newest_whole(directory: Path) -> Path | None:
    for path in reversed(list_checkpoints(directory)):
        try:
            sealed.verify(path, (TENSORS, STATE))
        except (OSError, sealed.DamagedError, sealed.UnknownFormatError):
            continue
        return path
    return None
