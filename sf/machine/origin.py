"""The origin of a process: its command line, and the state of the code in its working directory."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GIT_S = 2.0
"""Longest wait for an answer of git, as of one that reads a slow disk."""


@dataclass(frozen=True)
class Origin:
    """What repeats a run beside its configuration."""

    command: str
    """The command line, as a shell takes it."""
    commit: str | None = None
    """Hash of the commit of the working directory; None without git or a commit."""
    has_changes: bool | None = None
    """Whether files that git knows differ from that commit; None where that is not known."""

    def to_json(self) -> dict[str, Any]:
        """In plain JSON types."""
        return asdict(self)

    def texts(self) -> dict[str, str]:
        """Name to text, without what is not known."""
        if self.commit is None:
            return {"command": self.command}
        changes = {None: "", False: ", without changes", True: ", with changes"}[self.has_changes]
        return {"command": self.command, "commit": f"{self.commit}{changes}"}


def origin_of(directory: Path | None = None) -> Origin:
    """That of this process.

    Args:
        directory: whose commit is looked for; None for the working directory.
    """
    command = shlex.join(sys.orig_argv)
    try:
        place = Path.cwd() if directory is None else directory
    except OSError:  # it was removed
        return Origin(command)
    commit = _git(place, "rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        return Origin(command)
    status = _git(place, "status", "--porcelain", "--untracked-files=no")
    return Origin(command, commit, None if status is None else bool(status))


def _git(directory: Path, *words: str) -> str | None:
    """The answer of git, which changes nothing; None where there is none."""
    line = ["git", "-C", str(directory), "--no-optional-locks", *words]
    try:
        answer = subprocess.run(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=GIT_S,
            env=os.environ | {"GIT_TERMINAL_PROMPT": "0"}, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.decode(errors="replace").strip() if answer.returncode == 0 else None
