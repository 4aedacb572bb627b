"""Whether nests fit their specs, prepared once per spec so that a nest that fits costs little.

    Fit(specs) ──► flatten(nest)        its leaves, if the structure is the same
               ├─► pack(leaves)         a nest of this structure
               └─► outer_shape(nest)    its batch dimensions, if types and shapes are right as well

Of a nest that does not fit nothing is said here: `check_structure` and `check_tensors` look again and find the words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from sf.policy.nests import Nest, is_leaf, leaves, map_leaves

Collect = Callable[[Nest, list[Nest]], bool]
"""Appends the leaves of a nest to the list; False where the structure is another one."""


class Fit:
    """All that is known about a nest of specs before tensors come."""

    def __init__(self, specs: Nest) -> None:
        self._specs = specs
        self._collect = _collecting(specs)
        self._make = specs._make if hasattr(specs, "_fields") and all(is_leaf(part) for part in specs) else None
        self.leaves = tuple(leaves(specs))
        self._expected = tuple((spec.dtype, spec.shape, len(spec.shape)) for spec in self.leaves)

    def __reduce__(self) -> tuple[type[Fit], tuple[Nest]]:
        """Pickled as the specs, which say everything."""
        return Fit, (self._specs,)

    def flatten(self, nest: Nest) -> list[Nest] | None:
        """The leaves in the order of those of the specs; None where `check_structure` has the last word."""
        found: list[Nest] = []
        if not self._collect(nest, found):
            return None
        for leaf in found:
            if not isinstance(leaf, (Tensor, np.ndarray)) and not is_leaf(leaf):
                return None
        return found

    def pack(self, found: Sequence[Nest]) -> Nest:
        """The inverse of `flatten`."""
        if self._make is not None:
            return self._make(found)
        remaining = iter(found)
        return map_leaves(lambda _: next(remaining), self._specs)

    def outer_shape(self, nest: Nest) -> tuple[int, ...] | None:
        """The result of `check_tensors`; None where it or `check_structure` has the last word."""
        found: list[Nest] = []
        if not self._collect(nest, found):
            return None
        outer: tuple[int, ...] | None = None
        for tensor, (dtype, shape, rank) in zip(found, self._expected, strict=True):
            if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
                return None
            size = tensor.shape
            if outer is None:
                outer = tuple(size[:-rank] if rank else size)
            if size != outer + shape:
                return None
        if outer is None:
            return ()
        return None if 0 in outer else outer


def _collecting(specs: Nest) -> Collect:
    """The function for nests of this structure: a tree of small ones, because nothing else is as fast in Python."""
    if is_leaf(specs):
        return _collect_leaf
    if isinstance(specs, Mapping):
        return _collecting_dict(specs)
    kind, count, parts = type(specs), len(specs), [_collecting(part) for part in specs]
    if all(is_leaf(part) for part in specs):

        def collect_leaves(nest: Nest, found: list[Nest]) -> bool:
            if type(nest) is not kind or len(nest) != count:
                return False
            found.extend(nest)
            return True

        return collect_leaves

    def collect_sequence(nest: Nest, found: list[Nest]) -> bool:
        if type(nest) is not kind or len(nest) != count:
            return False
        return all([collect(part, found) for collect, part in zip(parts, nest, strict=True)])

    return collect_sequence


def _collecting_dict(specs: Mapping[str, Nest]) -> Collect:
    keys, parts = specs.keys(), [(key, _collecting(part)) for key, part in specs.items()]

    def collect_dict(nest: Nest, found: list[Nest]) -> bool:
        if not isinstance(nest, dict) or nest.keys() != keys:
            return False
        return all([collect(nest[key], found) for key, collect in parts])

    return collect_dict


def _collect_leaf(leaf: Nest, found: list[Nest]) -> bool:
    found.append(leaf)
    return True
