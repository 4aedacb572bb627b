"""Metadata that pyproject.toml cannot hold: the readme without links into the repository, and the address of that."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"^\[?<img src=\"(?!https?:).*\n+", re.MULTILINE)
"""A line with a picture of the repository; the pages have it."""
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")
REMOTE = re.compile(
    r"(?:https?://(?:[^@/]+@)?|ssh://(?:[^@/]+@)?|[^@/:]+@)([\w.-]+\.\w+)(?::\d+)?[:/](.+?)(?:\.git)?/?"
)
"""An address of git on a host: ``https://host/a/b.git``, ``ssh://git@host/a/b`` or ``git@host:a/b.git``."""


def packaged(readme: str) -> str:
    """The text with the name of a file behind a word, where that was a link to the file."""
    return LINK.sub(r"\1 (`\2`)", IMAGE.sub("", readme))


def page(remote: str) -> str | None:
    """The web page of a repository with this address of git; None for a folder or another thing without a page."""
    found = REMOTE.fullmatch(remote.strip())
    return None if found is None else f"https://{found[1]}/{found[2]}"


def urls(root: Path) -> dict[str, str]:
    """Names and addresses in the repository that git calls ``origin``; an unpacked source package has them already."""
    if not (root / ".git").exists():
        return {}
    try:
        asked = subprocess.run(["git", "remote", "get-url", "origin"], cwd=root, capture_output=True, text=True)
    except OSError:  # no git here
        return {}
    if (home := page(asked.stdout)) is None:
        return {}
    return {
        "Homepage": home,
        "Documentation": f"{home}/tree/HEAD/docs",
        "Changelog": f"{home}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


class Hook(MetadataHookInterface):
    """Sets the fields ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by the build."""
        root = Path(self.root)
        text = packaged((root / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(root)
