"""Nests: a leaf, or a tuple, list, dict or named tuple of nests.

A leaf is one tensor, array, spec or distribution. The empty tuple means "nothing here". Dicts are alike if they have
the same keys, in any order. Tuples and lists are alike if they have the same type and length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Nest = Any
Path = tuple[Any, ...]
"""Keys, field names and indices that lead to a part of a nest."""


def map_leaves(function: Callable[..., Any], nest: Nest, *others: Nest) -> Nest:
    """The nest with `function(leaf, *leaves of the others at the same place)` in place of each leaf."""
    if isinstance(nest, (tuple, list)):
        if others:
            parts = [map_leaves(function, *parts) for parts in zip(nest, *others, strict=True)]
        elif nest:
            parts = [map_leaves(function, part) for part in nest]
        else:
            return nest
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    if isinstance(nest, Mapping):
        return {key: map_leaves(function, part, *(other[key] for other in others)) for key, part in nest.items()}
    return function(nest, *others)


def leaves(nest: Nest) -> Iterator[Any]:
    """Every leaf, depth first."""
    for _, leaf in leaves_with_paths(nest):
        yield leaf


def leaves_with_paths(nest: Nest, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf and the path to it."""
    for key, part in _parts(nest):
        yield from leaves_with_paths(part, (*path, key))
    if is_leaf(nest):
        yield path, nest


def find(nest: Nest, path: Path) -> Any:
    """The part at a path."""
    for key in path:
        nest = getattr(nest, key) if hasattr(nest, "_fields") else nest[key]
    return nest


def nest_of(parts: Mapping[tuple[str | int, ...], Any]) -> Nest:
    """Dicts and tuples that have these parts at these paths; texts are keys of dicts, numbers places of tuples."""
    if () in parts:
        return parts[()]
    children: dict[str | int, dict[tuple[str | int, ...], Any]] = {}
    for (first, *rest), part in parts.items():
        children.setdefault(first, {})[tuple(rest)] = part
    nests = {key: nest_of(child) for key, child in children.items()}
    return tuple(nests.values()) if all(isinstance(key, int) for key in nests) else nests


def without_extra_keys(nest: Nest, wanted: Nest) -> Nest:
    """The nest without the dict keys that `wanted` does not have; parts that differ in another way stay as they are."""
    if isinstance(nest, Mapping) and isinstance(wanted, Mapping):
        if any(key not in nest for key in wanted):
            return nest
        return {key: without_extra_keys(nest[key], part) for key, part in wanted.items()}
    is_sequence = isinstance(nest, (tuple, list)) and isinstance(wanted, (tuple, list))
    if not is_sequence or len(nest) != len(wanted) or not nest:
        return nest
    parts = [without_extra_keys(*pair) for pair in zip(nest, wanted, strict=True)]
    return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)


def has_keys(nest: Nest) -> bool:
    """Whether there is a dict in it."""
    return isinstance(nest, Mapping) or (not is_leaf(nest) and any(has_keys(part) for part in nest))


def check_structure(nest: Nest, wanted: Nest, what: str) -> None:
    """Refuse a nest that is built in another way than `wanted`.

    Args:
        nest, wanted: to compare; only their structure counts.
        what: what the nest is, for the message.

    Raises:
        ValueError: says where they differ.
    """
    if difference := _difference(nest, wanted, ()):
        path, found, expected = difference
        raise ValueError(f"{path_text(what, path)} is {found}, expected {expected}.")


def path_text(what: str, path: Path) -> str:
    """For messages: ``observation['camera'][0]``."""
    return what + "".join(f"[{key!r}]" for key in path)


def _difference(nest: Nest, wanted: Nest, path: Path) -> tuple[Path, str, str] | None:
    """The first place where the structures differ, with the found and the expected part."""
    if is_leaf(nest) != is_leaf(wanted) or (
        not is_leaf(nest) and (_kind(nest) != _kind(wanted) or _keys(nest) != _keys(wanted))
    ):
        return path, _outline(nest), _outline(wanted)
    for key, part in _parts(wanted):
        if difference := _difference(find(nest, (key,)), part, (*path, key)):
            return difference
    return None


def is_leaf(nest: Nest) -> bool:
    """Whether it is no container."""
    return not isinstance(nest, (tuple, list, Mapping))


def _kind(nest: Nest) -> type:
    """Named tuples are told apart by their names, dicts are all of one kind."""
    return dict if isinstance(nest, Mapping) else type(nest)


def _keys(nest: Nest) -> set[Any]:
    return {key for key, _ in _parts(nest)}


def _parts(nest: Nest) -> Iterator[tuple[Any, Nest]]:
    if isinstance(nest, Mapping):
        yield from nest.items()
    elif hasattr(nest, "_fields"):
        yield from zip(nest._fields, nest, strict=True)
    elif isinstance(nest, (tuple, list)):
        yield from enumerate(nest)


def _outline(nest: Nest) -> str:
    if is_leaf(nest):
        return f"one {type(nest).__name__}" if not hasattr(nest, "dtype") else "one array"
    if isinstance(nest, Mapping):
        return f"a dict with the keys {sorted(map(str, nest))}"
    if nest == ():
        return "(), which means nothing"
    return f"a {type(nest).__name__} of {len(nest)}"
