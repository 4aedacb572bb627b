"""The readme of the package: README.md without links into the repository, which lead nowhere on a package index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"^\[?<img src=\"(?!https?:).*\n+", re.MULTILINE)
"""A line with a picture of the repository; the pages have it."""
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")


def packaged(readme: str) -> str:
    """The text with the name of a file behind a word, where that was a link to the file."""
    return LINK.sub(r"\1 (`\2`)", IMAGE.sub("", readme))


class ReadmeHook(MetadataHookInterface):
    """Sets the field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by the build."""
        text = packaged((Path(self.root) / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
