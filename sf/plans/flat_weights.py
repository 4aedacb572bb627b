"""The weights of plan policies as bytes, to be published where those of a learner are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sf.errors import UsageError
from sf.shared.arena import Array

BYTES_PER_WORD = 4
"""Of the published vector, which is float32; weights of any type keep their bits."""


def num_words(weights: Any) -> int:
    """Length of the vector that holds them."""
    num_bytes = sum(leaf.nbytes for leaf in _leaves(weights))
    return max(1, -(-num_bytes // BYTES_PER_WORD))


def write_weights(weights: Any, vector: Array) -> None:
    """Writes them into [size] float32.

    Raises:
        UsageError: they are no arrays, numbers, or mappings and lists of such.
    """
    room, start = vector.view(np.uint8), 0
    for leaf in _leaves(weights):
        room[start : start + leaf.nbytes] = leaf.reshape(-1).view(np.uint8)
        start += leaf.nbytes


def read_weights(like: Any, vector: Array) -> Any:
    """A copy of what `write_weights` wrote, in the form of `like`."""
    return _read(like, vector.view(np.uint8), 0)[0]


def _leaves(weights: Any) -> Iterator[Array]:
    if isinstance(weights, Mapping):
        for key in weights:
            yield from _leaves(weights[key])
    elif isinstance(weights, (list, tuple)):
        for part in weights:
            yield from _leaves(part)
    else:
        yield _as_array(weights)


def _as_array(leaf: Any) -> Array:
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu().numpy()
    array = np.ascontiguousarray(leaf)
    if array.dtype.kind not in "fiub":
        raise UsageError(
            f"get_weights returned a {type(leaf).__name__}. Remote workers take weights that are numbers or arrays, or "
            "dicts and lists of them."
        )
    return array


def _read(like: Any, room: Array, start: int) -> tuple[Any, int]:
    if isinstance(like, Mapping):
        parts: dict[Any, Any] = {}
        for key, part in like.items():
            parts[key], start = _read(part, room, start)
        return parts, start
    if isinstance(like, (list, tuple)):
        each = []
        for part in like:
            found, start = _read(part, room, start)
            each.append(found)
        return type(like)(each), start
    array = _as_array(like)
    stop = start + array.nbytes
    found = room[start:stop].copy().view(array.dtype).reshape(np.shape(like))
    if isinstance(like, (bool, int, float)):
        return type(like)(found[()]), stop
    return found, stop
