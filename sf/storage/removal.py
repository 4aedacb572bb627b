"""The removal of checkpoints: a name goes before the contents, and one that is whole always stays."""

from __future__ import annotations

import logging
import shutil
import uuid
from pathlib import Path

from sf.storage import sealed
from sf.storage.leftovers import OUTGOING
from sf.storage.names import STATE, TENSORS, list_checkpoints

log = logging.getLogger(__name__)


def remove_older(directory: Path) -> None:
    """Removes all checkpoints but the newest one that is whole; all stay if none is."""
    there = list_checkpoints(directory)
    newest = next((path for path in reversed(there) if _is_whole(path)), None)
    for path in there if newest else []:
        if path != newest:
            _remove(path)


def remove_all(directory: Path) -> None:
    """Removes every checkpoint in a directory."""
    for path in list_checkpoints(directory):
        _remove(path)


def remove_oldest(directory: Path, keep: int, saved: Path) -> None:
    """Leaves `keep` whole checkpoints: the one just saved, and the newest others.

    Not always is that the newest one: an earlier life of the run may have got further and saved its best policy there.
    """
    num_whole = 1
    for path in reversed(list_checkpoints(directory)):
        if path == saved:
            continue
        if num_whole >= keep:
            _remove(path)
        elif _is_whole(path):
            num_whole += 1


def _is_whole(path: Path) -> bool:
    try:
        sealed.verify(path, (TENSORS, STATE))
    except (OSError, sealed.DamagedError, sealed.UnknownFormatError):
        return False
    return True


def _remove(path: Path) -> None:
    """Takes the name away first, so that no reader sees half a checkpoint."""
    outgoing = path.with_name(f"{OUTGOING}{uuid.uuid4().hex}")
    try:
        path.rename(outgoing)
    except OSError as error:
        log.warning("Could not remove the old checkpoint %s: %s", path, error)
    else:
        shutil.rmtree(outgoing, ignore_errors=True)
