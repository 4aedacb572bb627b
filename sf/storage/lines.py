"""Files of lines to which a run adds, and from which a resumed run takes what an earlier one wrote too much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def keep_lines(path: Path, is_kept: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Replaces a file by those of its lines that are kept, in one step; one that was never finished goes too.

    Args:
        path: of the file, which may be missing.
        is_kept: says it of a line, its end included.

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
