"""Files of lines to which a run adds, and from which a resumed run takes what an earlier one wrote too much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sf.storage.objects import parsed_object

METRICS = "metrics.jsonl"


def keep_lines(path: Path, is_kept: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Replaces a file by those of its lines that are kept, in one step; one that was never finished goes too.

    Args:
        path: of the file, which may be missing.
        is_kept: True for a line, end included, that stays.

    Returns:
        The lines that were kept, and those that were removed.

    Raises:
        OSError: the file cannot be read or replaced.
    """
    if not path.exists():
        return [], []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    kept: list[str] = []
    removed: list[str] = []
    for line in lines:
        (kept if line.endswith("\n") and is_kept(line) else removed).append(line)
    if removed:
        incoming = path.with_name(f".{path.name}")
        incoming.write_text("".join(kept), encoding="utf-8")
        incoming.replace(path)
    return kept, removed


def last_frames(directory: Path, policy_id: int) -> int:
    """Frames of the newest point that the curves of a policy have in the directory of a run; 0 without one."""
    try:
        lines = (directory / METRICS).read_bytes().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        point = parsed_object(line)
        frames = point.get("frames")
        if point.get("policy_id") == policy_id and isinstance(frames, int):
            return frames
    return 0
