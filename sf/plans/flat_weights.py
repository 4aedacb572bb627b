"""The weights of plan policies as bytes, to be published where those of a learner are."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sf.errors import UsageError
from sf.shared.arena import Array

BYTES_PER_WORD = 4
"""The published vector is float32; weights of any type keep their bits."""
CHECKSUM_BYTES = 8
"""A checksum of the layout stands before the weights."""


def num_words(weights: Any) -> int:
    """Length of the vector that holds them.

    Raises:
        UsageError: they are no arrays, numbers, or mappings and lists of such.
    """
    num_bytes = CHECKSUM_BYTES + sum(leaf.nbytes for _, leaf in _leaves(weights))
    return -(-num_bytes // BYTES_PER_WORD)


def write_weights(weights: Any, vector: Array) -> None:
    """Writes them into [size] float32.

    Raises:
        UsageError: they take more room than the first ones, or are no numbers.
    """
    room, start = vector.view(np.uint8), CHECKSUM_BYTES
    leaves = list(_leaves(weights))
    if start + sum(leaf.nbytes for _, leaf in leaves) > len(room):
        raise UsageError("get_weights has grown: weights keep their shapes and types while a plan runs.")
    room[:CHECKSUM_BYTES] = _checksum(leaves)
    for _, leaf in leaves:
        room[start : start + leaf.nbytes] = leaf.reshape(-1).view(np.uint8)
        start += leaf.nbytes


def read_weights(like: Any, vector: Array) -> Any:
    """A copy of what `write_weights` wrote, in the form of `like`.

    Raises:
        UsageError: that had another form.
    """
    room, leaves = vector.view(np.uint8), list(_leaves(like))
    if (room[:CHECKSUM_BYTES] != _checksum(leaves)).any():
        layout = ", ".join(f"{path} {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves)
        raise UsageError(
            f"The weights of the driver have other names, shapes or types than those of this worker: {layout}. A new "
            "policy must have the weights that a trained one has."
        )
    return _read(like, room, CHECKSUM_BYTES)[0]


def _checksum(leaves: list[tuple[str, Array]]) -> Array:
    text = ";".join(f"{path} {leaf.dtype} {leaf.shape}" for path, leaf in leaves)
    return np.array([zlib.crc32(text.encode())], np.int64).view(np.uint8)


def _leaves(weights: Any, path: str = "weights") -> Iterator[tuple[str, Array]]:
    if isinstance(weights, Mapping):
        for key in sorted(weights, key=str):
            yield from _leaves(weights[key], f"{path}/{key}")
    elif isinstance(weights, (list, tuple)):
        for index, part in enumerate(weights):
            yield from _leaves(part, f"{path}/{index}")
    else:
        yield path, _as_array(weights)


def _as_array(leaf: Any) -> Array:
    if isinstance(leaf, (bool, int, float)):
        return np.array(float(leaf))  # a number may begin as a whole one
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu().numpy()
    array = np.ascontiguousarray(leaf).reshape(np.shape(leaf))
    if array.dtype.kind not in "fiub":
        raise UsageError(
            f"get_weights returned a {type(leaf).__name__}. Remote workers take weights that are numbers or arrays, or "
            "dicts and lists of them."
        )
    return array


def _read(like: Any, room: Array, start: int) -> tuple[Any, int]:
    if isinstance(like, Mapping):
        parts: dict[Any, Any] = {}
        for key in sorted(like, key=str):
            parts[key], start = _read(like[key], room, start)
        return {key: parts[key] for key in like}, start
    if isinstance(like, (list, tuple)):
        each = []
        for part in like:
            found, start = _read(part, room, start)
            each.append(found)
        return type(like)(each), start
    array = _as_array(like)
    stop = start + array.nbytes
    found = room[start:stop].copy().view(array.dtype).reshape(array.shape)
    if isinstance(like, (bool, int, float)):
        number = float(found)
        return type(like)(number) if isinstance(like, bool) or number.is_integer() else number, stop
    return found, stop
