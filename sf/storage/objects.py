"""JSON objects in files that another program may have written, or be about to write."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sf.errors import ExperimentError


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


def write_object(path: Path, content: Mapping[str, Any], indent: int | None = 2, is_durable: bool = False) -> None:
    """Replaces a file in one step: a reader sees the old content or the new one.

    Args:
        path: of the file.
        content: what JSON can hold.
        indent: spaces of each level; None for one line.
        is_durable: a machine that loses power has one of both as well, which takes some 10 ms.

    Raises:
        OSError: the file cannot be written.
    """
    incoming = path.with_name(f".{path.name}.tmp")
    text = json.dumps(content, indent=indent) + "\n"
    try:
        with incoming.open("w", encoding="utf-8") as file:
            file.write(text)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        incoming.replace(path)
    except OSError:
        incoming.unlink(missing_ok=True)
        raise


def damaged(path: Path, lost: str) -> ExperimentError:
    """The error about a file of a run that is there and cannot be gone on from.

    Args:
        path: of the file.
        lost: what a run without it begins anew.
    """
    return ExperimentError(
        f"{path} is damaged, and the run cannot go on from it. Restore it from a copy, or remove it to begin {lost} "
        "anew."
    )
