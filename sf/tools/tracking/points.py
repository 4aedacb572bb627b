"""The lines of metrics.jsonl as they come, and the memory of what was sent."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from sf.storage.names import FILMS
from sf.storage.objects import json_object, write_object
from sf.tools.report.runs import METRICS, point_of

SENT = ".sent.json"
"""In the directory of a run: by tracker the id of the run there, and the time of the newest point that it has."""


class Points:
    """Reads points that one tracker does not have yet, also those that are still being written."""

    def __init__(self, directory: Path, tracker: str) -> None:
        """Reads what an earlier process has noted.

        Args:
            directory: of the run.
            tracker: its name.
        """
        self._path, self._sent_path, self._tracker = directory / METRICS, directory / SENT, tracker
        known = self._all_sent().get(tracker, {})
        self.id: str = known.get("id") or secrets.token_hex(4)
        """Id of the run, as the tracker knows it."""
        self._films: set[Path] = set()
        self._newest_s: float = known.get("time_s", 0.0)
        self._inode, self._offset = 0, 0

    def new(self) -> list[dict[str, Any]]:
        """Points since the last call, in their order; without lines that are not finished or damaged."""
        try:
            with self._path.open("rb") as file:
                inode = self._path.stat().st_ino
                if inode != self._inode:  # a resumed run has forgotten some lines
                    self._inode, self._offset = inode, 0
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [point for line in whole.splitlines() if (point := point_of(line)) and point["time_s"] > self._newest_s]

    def new_films(self) -> list[tuple[int, Path]]:
        """Frames and paths of the films since the last call, in their order."""
        there = sorted(self._path.parent.glob(f"{FILMS}/[0-9]*.mp4"))
        new = [path for path in there if path not in self._films and path.stat().st_mtime > self._newest_s]
        self._films.update(new)
        return [(int(path.stem), path) for path in new if path.stem.isdigit()]

    def note(self, point: dict[str, Any]) -> None:
        """Remembers that the tracker has everything up to this point."""
        self._newest_s = max(self._newest_s, point["time_s"])
        sent = self._all_sent() | {self._tracker: {"id": self.id, "time_s": self._newest_s}}
        write_object(self._sent_path, sent)

    def _all_sent(self) -> dict[str, Any]:
        return json_object(self._sent_path)
