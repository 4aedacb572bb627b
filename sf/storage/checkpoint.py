"""Checkpoints: complete or absent, verified before they are read, free of pickle.

    <directory>/checkpoint_<version, 9 digits>_<env_steps>/
        tensors.safetensors   every tensor by name
        state.json            everything else
        manifest.json         sizes and SHA-256 sums of both
    <directory>/best/, <directory>/milestones/                  the same inside
    <directory>/.incoming-*, .outgoing-*                        a save or a removal that did not finish; ignored
    <directory>/damaged_checkpoint_*                            put aside by a load, never read again

A checkpoint is written under a hidden name, read back, and then renamed, so that its name appears with all of its
contents. It disappears by a rename as well. Which one is the newest follows from the names; that it is whole, from the
manifest. Nothing is looked up in a pointer that could be wrong.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from sf.errors import CheckpointError
from sf.storage import sealed
from sf.storage.leftovers import INCOMING, collect_leftovers
from sf.storage.names import BEGINNING as BEGINNING
from sf.storage.names import BEST as BEST
from sf.storage.names import MILESTONES as MILESTONES
from sf.storage.names import NAME, list_checkpoints
from sf.storage.names import POOL as POOL
from sf.storage.names import SPARE as SPARE
from sf.storage.names import STATE as STATE
from sf.storage.names import TENSORS as TENSORS
from sf.storage.removal import remove_oldest

log = logging.getLogger(__name__)

_DAMAGED = "damaged_"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read."""

    path: Path
    version: int
    env_steps: int
    tensors: dict[str, Tensor]
    """On the CPU."""
    data: dict[str, Any]


def save(
    directory: Path,
    version: int,
    env_steps: int,
    tensors: Mapping[str, Tensor],
    data: Mapping[str, Any],
    keep: int | None = None,
    replace: bool = False,
) -> Path:
    """Writes a checkpoint and removes the oldest others.

    If this version and step are there already and whole, nothing is written, unless it is to be replaced.

    Args:
        directory: where checkpoints live; made if needed, its parents are not.
        version: optimizer steps done.
        env_steps: as the learner counts them.
        tensors: copied before anything is written; on any device.
        data: anything that JSON can hold.
        keep: how many whole checkpoints remain, this one included; None keeps all.
        replace: the one that is there, at once, for one that holds more than what follows from its name.

    Returns:
        The path of the checkpoint.

    Raises:
        CheckpointError: it could not be written, or not made durable; earlier checkpoints are as they were.
    """
    path = directory / f"checkpoint_{version:09d}_{env_steps}"
    incoming = directory / f"{INCOMING}{uuid.uuid4().hex}"
    try:
        # The parents are not made: where they have gone, the marker of the directory has gone as well.
        directory.mkdir(mode=0o700, exist_ok=True)
        collect_leftovers(directory)
        if not _already_there(path) or replace:
            incoming.mkdir(mode=0o700)
            sealed.write(incoming, {TENSORS: _serialize(tensors), STATE: sealed.canonical_json(dict(data))})
            sealed.verify(incoming, (TENSORS, STATE))
            _put_in_place(incoming, path)
    except (OSError, sealed.DamagedError) as error:
        shutil.rmtree(incoming, ignore_errors=True)
        raise CheckpointError(
            f"Checkpoint {path} was not saved: {error}. Earlier checkpoints are untouched."
        ) from error
    try:
        sealed.sync_directory(directory)
    except OSError as error:
        raise CheckpointError(
            f"Checkpoint {path} is written, but whether it survives a power failure is unknown: {error}."
        ) from error
    if keep is not None:
        try:
            remove_oldest(directory, keep, path)
        except OSError as error:
            log.warning("Could not look for old checkpoints in %s: %s", directory, error)
    return path


def load(path: Path) -> Checkpoint:
    """Reads one checkpoint after verifying it.

    Raises:
        CheckpointError: it is damaged or of an unknown format.
    """
    try:
        return _read(path)
    except (OSError, sealed.DamagedError, sealed.UnknownFormatError) as error:
        raise CheckpointError(f"Checkpoint {path} cannot be used: {error}.") from error


def load_newest(directory: Path, put_aside: bool = True) -> Checkpoint | None:
    """Reads the newest whole checkpoint; None if there never was one.

    A damaged one is put aside by renaming it, and the one before it is used. To start from zero while damaged ones are
    there is not for this function to decide.

    Args:
        directory: where checkpoints live.
        put_aside: False for readers that do not own the directory; they only skip damaged ones.

    Raises:
        CheckpointError: there are checkpoints, but none that can be used.
    """
    problems: list[str] = []
    put_aside_now: list[Path] = []
    vanished = False
    for path in reversed(list_checkpoints(directory)):
        try:
            checkpoint = _read(path)
        except FileNotFoundError:
            vanished = True
            continue
        except sealed.UnknownFormatError as error:
            raise CheckpointError(f"Checkpoint {path} is of {error}.") from None
        except (OSError, sealed.DamagedError) as error:
            problems.append(f"{path}: {error}")
            log.error("CHECKPOINT DAMAGED: %s: %s", path, error)
            if put_aside and isinstance(error, sealed.DamagedError):
                put_aside_now.append(_put_aside(path))
            continue
        log.log(logging.WARNING if problems else logging.INFO, "Loaded checkpoint %s", path)
        return checkpoint
    if vanished and not problems:
        # The owner of the directory removed them while we looked, so it has saved newer ones.
        return load_newest(directory, put_aside)
    for path in sorted(directory.glob(f"{_DAMAGED}checkpoint_*")):
        if path not in put_aside_now:
            problems.append(f"{path}: put aside as damaged earlier")
    if problems:
        raise CheckpointError(
            f"No usable checkpoint in {directory}:\n  "
            + "\n  ".join(problems)
            + "\nRestore one from a copy, or start from zero with --restart_behavior=restart or overwrite."
        )
    return None


def load_spare(directory: Path) -> Checkpoint | None:
    """The newest of checkpoints that no run needs, such as the best one; None, loudly, if none can be used."""
    try:
        return load_newest(directory)
    except CheckpointError as error:
        log.error("The checkpoints in %s are lost, and the next one takes their place. %s", directory, error)
        return None


def named(directory: Path, name: str) -> Path:
    """The checkpoint of this name, not verified.

    Raises:
        CheckpointError: there is none; lists those that there are.
    """
    if (directory / name).is_dir():
        return directory / name
    there = ", ".join(["latest", BEST, *(path.name for path in list_checkpoints(directory))])
    raise CheckpointError(f"There is no checkpoint {name!r} in {directory}; there are {there}.")


def _read(path: Path) -> Checkpoint:
    match = NAME.fullmatch(path.name)
    if match is None:
        raise sealed.DamagedError(f"its name is not of the form checkpoint_<version>_<env_steps>: {path.name}")
    sealed.verify(path, (TENSORS, STATE))
    try:
        tensors = safetensors.torch.load_file(path / TENSORS)
        data = json.loads((path / STATE).read_bytes())
    except (safetensors.SafetensorError, ValueError, RecursionError) as error:
        raise sealed.DamagedError(f"its contents cannot be read: {error!r}") from None
    if not isinstance(data, dict):
        raise sealed.DamagedError(f"{STATE} holds {type(data).__name__}, expected an object")
    return Checkpoint(path, int(match[1]), int(match[2]), tensors, data)


def _serialize(tensors: Mapping[str, Tensor]) -> bytes:
    """The contents of a safetensors file; views of one block, as the variables of a policy are, become separate."""
    separate = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(separate)


def _already_there(path: Path) -> bool:
    """Whether the checkpoint is there and whole; puts aside one that is damaged."""
    if not path.exists():
        return False
    try:
        sealed.verify(path, (TENSORS, STATE))
    except (sealed.DamagedError, sealed.UnknownFormatError) as error:
        log.error("CHECKPOINT DAMAGED: %s: %s", path, error)
        _put_aside(path)
        return False
    return True


def _put_in_place(incoming: Path, path: Path) -> None:
    """Under its name in one step, also where another one has that name.

    A file system that cannot exchange two names, as some of networks, keeps the other one.
    """
    if not path.exists():
        incoming.rename(path)
        return
    try:
        sealed.exchange(incoming, path)
    except OSError as error:
        if error.errno not in sealed.CANNOT_EXCHANGE:
            raise
    shutil.rmtree(incoming, ignore_errors=True)


def _put_aside(path: Path) -> Path:
    target = path.with_name(f"{_DAMAGED}{path.name}")
    if target.exists():
        target = path.with_name(f"{_DAMAGED}{path.name}_{uuid.uuid4().hex[:8]}")
    try:
        path.rename(target)
    except OSError as error:
        log.error("Could not rename %s to %s: %s", path, target, error)
        return path
    log.error("It was put aside as %s", target)
    return target
