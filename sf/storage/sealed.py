"""A folder whose files are sealed by a manifest of their sizes and SHA-256 sums.

    manifest.json   {"files": {name: {"sha256": ..., "size": ...}}, "format": 1, "sf": version that has written it,
                     "sha256": of the rest of the manifest}

A file is opened for parsing only after its size and sum agree with the manifest. So little of it may be text, JSON or
the head of a tensor file that its reader needs less memory than twice the folder. This protects from a folder that was
made to do harm, because it is intact as well. The manifest is in one canonical form and holds its own sum, so that a
flipped bit is told from a manifest of another format.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sf import __version__

MANIFEST = "manifest.json"
FORMAT = 1
MAX_MANIFEST_SIZE = 1 << 20
MAX_GROWTH = 32
"""How much more memory text may take when it has been parsed: JSON of empty objects 31 times as much."""
SMALL = 1 << 20
"""Bytes of text that are parsed in any case."""
CANNOT_EXCHANGE = errno.EINVAL, errno.ENOSYS, errno.ENOTSUP
"""Errors of `exchange` where the file system or the C library does not support it."""
CANNOT_SYNC_DIRECTORIES = errno.EINVAL, errno.ENOSYS, errno.ENOTSUP
"""Errors of fsync of a directory where the file system has none, as some of networks and FUSE; others ignore it too."""
TRIAL = ".trial"
"""Name of a file that shows what a file system can."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


class DamagedError(Exception):
    """A sealed folder is incomplete or not what was written."""


class UnknownFormatError(Exception):
    """A sealed folder is intact but of a format that this version does not read."""


def canonical_json(data: Any) -> bytes:
    """The one way in which data is written: sorted keys, no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files and then the manifest into an existing folder, and makes all of it durable; `verify` it then."""
    for name, content in files.items():
        _write_durably(folder / name, content)
    manifest: dict[str, Any] = {
        "files": {
            name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            for name, content in files.items()
        },
        "format": FORMAT,
        "sf": __version__,
    }
    manifest["sha256"] = hashlib.sha256(canonical_json(manifest)).hexdigest()
    _write_durably(folder / MANIFEST, canonical_json(manifest))
    sync_directory(folder)


def verify(folder: Path, names: tuple[str, ...]) -> None:
    """Compares a folder with its manifest, which must list exactly these files.

    Raises:
        DamagedError: anything is missing or differs, or too much of it is text.
        UnknownFormatError: it is intact but of another format.
    """
    listed = _read_manifest(folder)
    if set(listed) != set(names):
        raise DamagedError(f"{MANIFEST} lists {sorted(listed)}, expected {sorted(names)}")
    for name in names:
        size, expected = listed[name]["size"], listed[name]["sha256"]
        found = _size(folder / name)
        if found != size:
            raise DamagedError(f"{name} has {found} bytes, expected {size}")
        found_sum = _sum_of_file(folder / name)
        if found_sum != expected:
            raise DamagedError(f"{name} has the SHA-256 sum {found_sum}, expected {expected}")
    limit = max(SMALL, sum(listed[name]["size"] for name in names) // MAX_GROWTH)
    if (found := sum(_text_size(folder / name) for name in names)) > limit:
        raise DamagedError(
            f"{', '.join(names)} cannot be read: they hold {found} bytes of text, expected at most {limit}"
        )


def exchange(one: Path, other: Path) -> None:
    """Swaps two names in one step; a reader always sees both.

    Raises:
        OSError: nothing has changed; see `CANNOT_EXCHANGE`.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # some C libraries have none
    if renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable, where the file system can."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC_DIRECTORIES:
            raise
    finally:
        os.close(descriptor)


def try_writing(directory: Path) -> None:
    """Writes a file as those of a sealed folder and removes it.

    Raises:
        OSError: the file system refuses a part of that.
    """
    path = directory / TRIAL
    path.unlink(missing_ok=True)
    _write_durably(path, b"durable")
    sync_directory(directory)
    path.unlink()


def _read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / MANIFEST
    if _size(path) > MAX_MANIFEST_SIZE:
        raise DamagedError(f"{MANIFEST} is larger than {MAX_MANIFEST_SIZE} bytes")
    content = path.read_bytes()
    try:
        manifest = json.loads(content)
        if canonical_json(manifest) != content:
            raise DamagedError(f"{MANIFEST} is not in its canonical form")
        own_sum = manifest.pop("sha256")
        if hashlib.sha256(canonical_json(manifest)).hexdigest() != own_sum:
            raise DamagedError(f"{MANIFEST} does not have its own SHA-256 sum")
        if manifest["format"] != FORMAT:
            writer = f"sf {manifest['sf']}, which has" if "sf" in manifest else "the version of sf that has"
            raise UnknownFormatError(
                f"format {manifest['format']}, but sf {__version__} reads format {FORMAT}: use {writer} written it"
            )
        files: dict[str, dict[str, Any]] = manifest["files"]
        return {str(name): {"size": int(file["size"]), "sha256": str(file["sha256"])} for name, file in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{MANIFEST} cannot be read: {error!r}") from None


def _size(path: Path) -> int:
    """Size of a regular file; a link or a device is damage, not something to follow."""
    if path.is_symlink() or not path.is_file():
        if not path.exists() and not path.parent.exists():
            raise FileNotFoundError(path)
        raise DamagedError(f"{path.name} is missing or not a regular file")
    return path.stat().st_size


def _text_size(path: Path) -> int:
    """Bytes of a file that are parsed and not just numbers."""
    if path.suffix == ".json":
        return path.stat().st_size
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little")  # with which a tensor file begins


def _sum_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _write_durably(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
