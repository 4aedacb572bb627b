"""Arrays and tensors that change hands: the receiver keeps what it was given, whatever happens to it afterwards."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor


def arrays_in(nest: Any) -> Iterator[np.ndarray[Any, Any] | Tensor]:
    """All arrays and tensors in dicts, lists and tuples, and in objects with attributes."""
    if isinstance(nest, (np.ndarray, Tensor)):
        yield nest
    elif isinstance(nest, dict):
        for part in nest.values():
            yield from arrays_in(part)
    elif isinstance(nest, (list, tuple)):
        for part in nest:
            yield from arrays_in(part)
    elif hasattr(nest, "__dict__"):
        yield from arrays_in(vars(nest))


def overwrite(nest: Any) -> None:
    """Writes other numbers into every array of a nest, in place."""
    for array in arrays_in(nest):
        if isinstance(array, np.ndarray):
            array[...] = ~array if array.dtype.kind == "b" else 77
        else:
            array.copy_(~array if array.dtype == torch.bool else torch.full_like(array, 77))


class Kept:
    """What a caller keeps, and what it was when the caller got it."""

    def __init__(self, *kept: Any) -> None:
        self._kept, self._was = kept, copy.deepcopy(kept)

    def expect_same(self) -> None:
        """Refuses an array that has changed since then."""
        self.expect_equal(*self._kept)

    def expect_equal(self, *others: Any) -> None:
        """Refuses an array of others that is not as the kept one was then."""
        pairs = list(zip(arrays_in(others), arrays_in(self._was), strict=True))
        assert pairs, "nothing was kept"
        for now, before in pairs:
            np.testing.assert_array_equal(np.asarray(now), np.asarray(before))
