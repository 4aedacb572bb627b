"""The console log of a run: a file with the lines that all of its processes print, bounded in size.

Each line is appended in one write, and the file is opened for it: lines are few, and no process keeps a file that
another one has replaced. The process of the run itself shortens the file; the others only append.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MOST_BYTES = 4 * 2**20
"""Largest size of the file. A longer one loses its older half."""
SHORTENED = "[earlier lines were removed]\n"


class ConsoleLog:
    """Appends text. A disk that fails costs lines of the log, never the run."""

    def __init__(self, path: Path, may_shorten: bool = True, most_bytes: int = MOST_BYTES) -> None:
        """Opens nothing.

        Args:
            path: of the file, whose directory exists.
            may_shorten: in one process only.
            most_bytes: of the file.
        """
        self.path, self._may_shorten, self._most_bytes = path, may_shorten, most_bytes

    def append(self, text: str) -> None:
        """Adds text at the end."""
        with contextlib.suppress(OSError):
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(file).st_size
                if size < 2 * self._most_bytes:  # else the process that shortens it has nothing to say
                    os.write(file, text.encode(errors="backslashreplace"))
            finally:
                os.close(file)
            if self._may_shorten and size > self._most_bytes:
                self._shorten()

    def _shorten(self) -> None:
        """Keeps the newer half in a file that takes the place of the old one."""
        with self.path.open("rb") as file:
            file.seek(-self._most_bytes // 2, os.SEEK_END)
            file.readline()  # cut in two
            newer = file.read()
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        temporary.write_bytes(SHORTENED.encode() + newer)
        temporary.chmod(0o600)
        temporary.replace(self.path)
