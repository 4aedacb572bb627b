"""JSON objects in files that another program may have written, or be about to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def json_object(path: Path) -> dict[str, Any]:
    """Contents of a file; nothing if it is missing or damaged, or holds something else."""
    try:
        return parsed_object(path.read_bytes())
    except OSError:
        return {}


def parsed_object(text: bytes) -> dict[str, Any]:
    """The object that a text holds; nothing if it holds something else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
