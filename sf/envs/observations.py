"""Observations of environments, checked and copied into shared memory row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from sf.envs.contract import unmasked, without_mask
from sf.envs.leaves import check_categories, check_keys, check_mask, entries, first_choices, leaf_array, leaf_value
from sf.errors import EnvError
from sf.shared.arena import Array
from sf.spaces import ACTION_MASK, EnvInfo


class ObservationWriter:
    """Copies one observation into its row after comparing shape and dtype of every leaf.

    So nothing is broadcast or cast silently. The numbers themselves are for `RangeCheck`, when all rows are written.
    """

    def __init__(self, info: EnvInfo):
        self.leaves = [
            (name, leaf, np.dtype(leaf.dtype), f"it returned an observation {name!r}")
            for name, leaf in info.observations.items()
        ]
        (_, leaf, *_), *others = self.leaves
        self.check_entries = EntryCheck(info)
        is_vector = not others and not leaf.path and not leaf.categories and len(leaf.shape) == 1
        self.vector_size = leaf.shape[0] if is_vector else 0
        """Length of an observation that is one array of rank 1; 0 for all others."""
        self.blanks = blank_observation(info)

    def __call__(self, out: dict[str, Array], row: int, observation: Any) -> None:
        """Writes one observation into `out[name][row]`.

        Raises:
            EnvError: see `leaf_array`; or a dict or a tuple has other entries than its space.
        """
        for name, leaf, dtype, what in self.leaves:
            value = leaf_value(observation, leaf) if leaf.path else observation
            if value.__class__ is not np.ndarray or value.dtype is not dtype or value.shape != leaf.shape:
                value = leaf_array(value, leaf, what)
            out[name][row] = value
        if self.check_entries.sizes:
            self.check_entries(observation)

    def blank(self, out: dict[str, Array], rows: int | Array) -> None:
        """Writes into rows that no policy needs what any policy can read."""
        for name, values in self.blanks.items():
            out[name][rows] = values


def blank_observation(info: EnvInfo) -> dict[str, Array]:
    """By leaf, of its shape: zeros, the first categories, and a mask that allows everything."""
    blanks = {}
    for name, leaf in info.observations.items():
        values = np.zeros(leaf.shape, leaf.dtype)
        if leaf.categories:
            values[...] = np.reshape(leaf.starts, leaf.shape)
        elif name == ACTION_MASK:
            values[...] = 1
        blanks[name] = values
    return blanks


class EntryCheck:
    """Refuses entries of an observation that no leaf asks for, for little more than a comparison of lengths."""

    def __init__(self, info: EnvInfo):
        self.info, self.sizes = info, [(path, len(keys)) for path, keys in entries(info).items()]

    def __call__(self, observation: Any, kind: str = "an observation") -> None:
        """Looks at one observation, all of whose leaves were found.

        Args:
            observation: a nest, or anything where the space is none.
            kind: its name in messages.

        Raises:
            EnvError: a dict or a tuple in it has more entries than its space, or is none.
        """
        for path, size in self.sizes:
            nest = observation
            for key in path:
                nest = nest[key]
            if not isinstance(nest, (dict, tuple, list)) or len(nest) != size:
                check_keys(observation, self.info, kind)


class BadRow(NamedTuple):
    """A row that may not be stored as it is."""

    row: int
    error: EnvError


class RangeCheck:
    """Checks beyond shape and dtype: categories in their range, masks that allow something.

    Looks at all rows at once, because that costs little more than looking at one (2 to 7 microseconds).
    """

    def __init__(self, info: EnvInfo):
        self.info = info
        self.categories = [
            (name, np.array(leaf.starts), np.add(leaf.starts, leaf.categories))
            for name, leaf in info.observations.items()
            if leaf.categories
        ]
        self.has_mask, self.first_choices = ACTION_MASK in info.observations, first_choices(info.action)
        self.is_needed = self.has_mask or bool(self.categories)

    def bad_row(self, observations: dict[str, Array]) -> BadRow | None:
        """The first of some rows, [rows, ...] per leaf, with a fault; None if there is none."""
        if not any(self._faults(observations)):
            return None
        for row in range(len(next(iter(observations.values())))):
            try:
                self._check(observations, row)
            except EnvError as error:
                return BadRow(row, error)
        raise AssertionError("all rows together have a fault, and none of them on its own")

    def _faults(self, observations: dict[str, Array]) -> Iterator[bool]:
        """Whether any row has one, leaf by leaf."""
        for name, first, stop in self.categories:
            values = observations[name].reshape(-1, len(first))
            yield bool(((values < first) | (values >= stop)).any())
        if self.has_mask:
            masks = observations[ACTION_MASK]
            yield not np.logical_or.reduceat(masks, self.first_choices, axis=1).all()
            yield masks.dtype.kind == "f" and bool(np.isnan(masks).any())

    def _check(self, observations: dict[str, Array], row: int) -> None:
        for name, leaf in self.info.observations.items():
            check_categories(observations[name][row], leaf, f"it returned an observation {name!r}")
        if self.has_mask:
            check_mask(observations[ACTION_MASK][row], self.info.action)


class FinalObservations:
    """Those of truncated episodes, which are only valued: no move follows, so their masks are ignored."""

    def __init__(self, info: EnvInfo):
        self.has_mask, self.info = ACTION_MASK in info.observations, without_mask(info)
        self.check_entries, self.ranges = EntryCheck(self.info), RangeCheck(self.info)
        self._write = ObservationWriter(self.info)

    def write(self, out: dict[str, Array], row: int, observation: Any) -> None:
        """Writes one of them into `out[name][row]`, with a mask that allows everything.

        Raises:
            EnvError: another part of it does not fit its space.
        """
        self._write(out, row, self.unmasked(observation))
        self.allow_all(out, row)
        if bad := self.bad_row({name: array[row : row + 1] for name, array in out.items()}):
            raise bad.error

    def unmasked(self, observation: Any) -> Any:
        """The observation without its mask."""
        return unmasked(observation) if self.has_mask else observation

    def allow_all(self, out: dict[str, Array], rows: int | Array) -> None:
        """Writes the mask of some rows."""
        if self.has_mask:
            out[ACTION_MASK][rows] = 1

    def bad_row(self, observations: dict[str, Array]) -> BadRow | None:
        """The first of some rows, [rows, ...] per leaf, with a fault; None if there is none."""
        return self.ranges.bad_row(observations) if self.ranges.is_needed else None
