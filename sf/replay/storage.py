"""The content of a replay buffer: rows of named tensors, nested as the data is.

A *key* names a column: a text, or a tuple of texts for a nested one. Rows lie in a ring: once the storage is full, the
oldest ones make room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

Key = str | tuple[str, ...]
Rows = Mapping[str, Any]
"""Nested mappings of tensors [n, ...], or of one row without the leading axis."""


class Storage(Protocol):
    """A bounded number of rows under the indices from 0."""

    max_size: int

    def __len__(self) -> int:
        """Rows that were written; the indices beyond hold nothing."""

    def column(self, key: Key) -> Tensor:
        """[len, ...] one column.

        Raises:
            KeyError: there is no such column.
        """

    def write(self, start: int, rows: Rows, num_rows: int) -> None:
        """Writes rows from index `start` on, which go on at index 0 when they reach the end."""

    def read(self, index: Tensor) -> dict[str, Any]:
        """Rows by their indices [n], copied."""

    def clear(self) -> None:
        """Forgets all rows."""

    def state_dict(self) -> dict[str, Any]:
        """The rows that were written, copied, with ``max_size``."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the rows of a state in the place of those that are there.

        Raises:
            ValueError: it is of a storage of another size.
        """


class TensorStorage:
    """Rows in one tensor per column, allocated with the first rows: shapes, types and names are those of the first."""

    def __init__(self, max_size: int, device: torch.device | str = "cpu", batch_dims: int = 1) -> None:
        """Starts empty.

        Args:
            max_size: rows.
            device: that holds them.
            batch_dims: leading axes of a column that count entries. With 2 a row is itself a batch, such as the agents
                of one step, and `read` takes indices into both axes, flattened.

        Raises:
            ValueError: there is no room for a row.
        """
        self.max_size, self.device, self.batch_dims = _checked_size(max_size), torch.device(device), batch_dims
        self._columns: dict[str, Any] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def column(self, key: Key) -> Tensor:
        """See `Storage`."""
        return find(self._columns, key)[: self._size]

    def write(self, start: int, rows: Rows, num_rows: int) -> None:
        """See `Storage`."""
        if not self._columns:
            self._columns = mapped(self._room, rows)
        _expect_alike(self._columns, rows)
        stop = start + num_rows
        before_end = min(num_rows, self.max_size - start)
        for column, new in zip(leaves(self._columns), leaves(rows, like=self._columns), strict=True):
            column[start : start + before_end] = new[:before_end]
            column[: num_rows - before_end] = new[before_end:]
        self._size = min(max(self._size, stop), self.max_size)

    def read(self, index: Tensor) -> dict[str, Any]:
        """See `Storage`."""
        index = index.to(self.device)
        return mapped(lambda column: self._flat(column).index_select(0, index), self._columns)

    def clear(self) -> None:
        """See `Storage`; memory and columns stay."""
        self._size = 0

    def state_dict(self) -> dict[str, Any]:
        """See `Storage`."""
        rows = mapped(lambda column: column[: self._size].clone(), self._columns)
        return {"max_size": self.max_size, "num_rows": self._size, "rows": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Storage`; columns, shapes and types are those of the state."""
        _expect_size(self.max_size, state)
        self._columns, self._size = {}, 0
        if state["num_rows"]:
            self.write(0, state["rows"], state["num_rows"])

    def _room(self, rows: Tensor) -> Tensor:
        return torch.empty((self.max_size, *rows.shape[1:]), dtype=rows.dtype, device=self.device)

    def _flat(self, column: Tensor) -> Tensor:
        return column if self.batch_dims == 1 else column.flatten(0, self.batch_dims - 1)


class ListStorage:
    """Rows in a list, each with shapes of its own; slower, for rows that do not fit into one tensor."""

    def __init__(self, max_size: int) -> None:
        """Starts empty; `max_size` is the number of rows.

        Raises:
            ValueError: there is no room for a row.
        """
        self.max_size = _checked_size(max_size)
        self._rows: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, key: Key) -> Tensor:
        """See `Storage`."""
        return torch.stack([find(row, key) for row in self._rows])

    def write(self, start: int, rows: Rows, num_rows: int) -> None:
        """See `Storage`."""
        for number in range(num_rows):
            row = mapped(lambda column, number=number: column[number].clone(), rows)  # type: ignore[misc]
            index = (start + number) % self.max_size
            self._rows[index : index + 1] = [row]

    def read(self, index: Tensor) -> dict[str, Any]:
        """See `Storage`; the rows that are asked for must have the same shapes."""
        chosen = [self._rows[number] for number in index.tolist()]
        columns = [torch.stack(parts) for parts in zip(*(leaves(row, like=chosen[0]) for row in chosen), strict=True)]
        return _with_leaves(chosen[0], iter(columns))

    def clear(self) -> None:
        """See `Storage`."""
        self._rows.clear()

    def state_dict(self) -> dict[str, Any]:
        """See `Storage`; ``rows`` is a list."""
        rows = [mapped(lambda column: column.clone(), row) for row in self._rows]
        return {"max_size": self.max_size, "num_rows": len(rows), "rows": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Storage`."""
        _expect_size(self.max_size, state)
        self._rows = [mapped(lambda column: column.clone(), row) for row in state["rows"]]


def find(columns: Rows, key: Key) -> Tensor:
    """The column under a key.

    Raises:
        KeyError: there is none.
    """
    found: Any = columns
    for name in (key,) if isinstance(key, str) else key:
        if not isinstance(found, Mapping) or name not in found:
            raise KeyError(key)
        found = found[name]
    if not isinstance(found, Tensor):
        raise KeyError(key)
    return found


def mapped(change: Callable[[Tensor], Tensor], rows: Rows) -> dict[str, Any]:
    """The same structure with another tensor for each one."""
    return {
        name: mapped(change, part) if isinstance(part, Mapping) else change(torch.as_tensor(part))
        for name, part in rows.items()
    }


def leaves(rows: Rows, like: Rows | None = None) -> list[Tensor]:
    """All tensors, in the order of names in `like`, or of their own."""
    found: list[Tensor] = []
    for name, part in (like or rows).items():
        found += leaves(rows[name], part) if isinstance(part, Mapping) else [torch.as_tensor(rows[name])]
    return found


def _with_leaves(rows: Rows, tensors: Any) -> dict[str, Any]:
    return mapped(lambda _: next(tensors), rows)


def _names(rows: Rows) -> dict[str, Any]:
    return {name: _names(part) if isinstance(part, Mapping) else None for name, part in rows.items()}


def _expect_alike(columns: Rows, rows: Rows) -> None:
    """Refuses rows that do not fit beside those that are there.

    Raises:
        ValueError: columns, shapes or types differ.
    """
    if _names(columns) != _names(rows):
        raise ValueError(f"The storage has the columns {_names(columns)}, but the new rows have {_names(rows)}.")
    for column, new in zip(leaves(columns), leaves(rows, like=columns), strict=True):
        if column.shape[1:] != new.shape[1:] or column.dtype != new.dtype:
            raise ValueError(
                f"The storage has a column of {column.dtype}{list(column.shape[1:])}, but the new rows have "
                f"{new.dtype}{list(new.shape[1:])} there."
            )


def _expect_size(max_size: int, state: Mapping[str, Any]) -> None:
    if state["max_size"] != max_size:
        raise ValueError(f"The state is of a storage of max_size={state['max_size']}, but this one has {max_size}.")


def _checked_size(max_size: int) -> int:
    if max_size < 1:
        raise ValueError(f"max_size={max_size} leaves no room for a row. Use 1 or more.")
    return max_size
