"""Where a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
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


def frames_not_saved(directory: Path, frames: Sequence[int]) -> int:
    """Frames that policies have learned from and that no checkpoint has.

    Args:
        directory: of the run.
        frames: that each policy has learned from.
    """
    saved = (frames_to_resume(directory / f"checkpoint_p{policy}") for policy in range(len(frames)))
    return sum(max(0, learned - kept) for learned, kept in zip(frames, saved, strict=True))


def _newest_whole(directory: Path) -> Path | None:
    for path in reversed(list_checkpoints(directory)):
        try:
            sealed.verify(path, (TENSORS, STATE))
        except (OSError, sealed.DamagedError, sealed.UnknownFormatError):
            continue
        return path
    return None
