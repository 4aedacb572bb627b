"""The leaves of an observation that an environment returned, checked against its observation space."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from sf.errors import EnvError
from sf.shared.arena import Array
from sf.spaces import ACTION_MASK, ActionSpec, EnvInfo, LeafSpec


def check_observation(observation: Any, info: EnvInfo) -> None:
    """Refuse an observation of one agent that does not fit the observation space."""
    check_keys(observation, info)
    for name, leaf in info.observations.items():
        what = f"{info.env_id} returned an observation {name!r}"
        array = leaf_array(leaf_value(observation, leaf), leaf, what)
        check_categories(array, leaf, what)
        if name == ACTION_MASK:
            check_mask(array, info.action)


def entries(info: EnvInfo) -> dict[tuple[str | int, ...], set[str | int]]:
    """The keys of every dict and every tuple of an observation, by where it is; empty if it is one array."""
    wanted: dict[tuple[str | int, ...], set[str | int]] = {}
    for leaf in info.observations.values():
        for depth, key in enumerate(leaf.path):
            wanted.setdefault(leaf.path[:depth], set()).add(key)
    return wanted


def check_keys(observation: Any, info: EnvInfo, kind: str = "an observation") -> None:
    """Refuse a nest with missing or additional entries."""
    for path, keys in entries(info).items():
        node = reduce(lambda part, key: part[key], path, observation)
        found = set(node) if isinstance(node, Mapping) else set(range(len(node))) if is_row(node) else None
        if found != keys:
            where = f" at {'/'.join(map(str, path))!r}" if path else ""
            shown = f"with the keys {sorted(found, key=str)}" if found is not None else f"of type {type(node).__name__}"
            raise EnvError(
                f"{info.env_id} returned {kind}{where} {shown}, but its observation space has "
                f"{sorted(keys, key=str)}. Return exactly those."
            )


def is_row(value: Any) -> bool:
    """Whether it may stand for an element of a Tuple space: a tuple, a list or an array, as Gymnasium has it."""
    return isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def leaf_value(observation: Any, leaf: LeafSpec) -> Any:
    """The part of an observation that belongs to a leaf."""
    for key in leaf.path:
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError):
            name = "/".join(map(str, leaf.path))
            raise EnvError(f"it returned an observation without the entry {name!r}: {observation!r}.") from None
    return observation


def leaf_array(value: Any, leaf: LeafSpec, what: str) -> Array:
    """The value as an array that can be stored in the leaf without losing anything but digits of float64.

    Args:
        value: returned by the environment.
        leaf: promised by its observation space.
        what: beginning of the sentence that says what is wrong.

    Raises:
        EnvError: wrong shape, or a type that does not fit. Categories are not looked at, see `check_categories`.
    """
    array = any_array(value)
    if array.shape != leaf.shape:
        raise EnvError(
            f"{what} of shape {array.shape}, but its observation space promises {leaf.shape}. "
            "Correct the space or what reset and step return."
        )
    if not _fits(array, np.dtype(leaf.dtype)):
        raise EnvError(
            f"{what} of dtype {array.dtype}, which does not fit into {leaf.dtype} as its observation space promises. "
            "Convert it in the environment."
        )
    return array


def vector_leaf_array(value: Any, leaf: LeafSpec, num_envs: int, what: str) -> Array:
    """Like `leaf_array` for the values of many environments, [num_envs, *shape]."""
    array = any_array(value)
    if array.shape != (num_envs, *leaf.shape) or not _fits(array, np.dtype(leaf.dtype)):
        raise EnvError(
            f"{what} {array.dtype}{list(array.shape)}, expected {leaf.dtype}{[num_envs, *leaf.shape]} as the single "
            "observation space promises. Correct the space or what reset and step return."
        )
    return array


def check_categories(array: Array, leaf: LeafSpec, what: str) -> None:
    """Refuse a category out of range, in an array of the shape of the leaf; `what` as for `leaf_array`."""
    places = array.reshape(-1) - leaf.starts if leaf.categories else np.zeros(0)
    if ((places < 0) | (places >= leaf.categories)).any():
        raise EnvError(
            f"{what} with the value {array}, but its observation space promises {leaf}. "
            "Correct the space or what reset and step return."
        )


def check_mask(mask: Array, action: ActionSpec) -> None:
    """Refuse a mask, [total number of choices], that holds NaN or leaves a column without a legal choice."""
    if mask.dtype.kind == "f" and np.isnan(mask).any():
        raise EnvError(f"it returned the action mask {mask.tolist()}, which holds NaN. Use 0 for what is not allowed.")
    legal = np.logical_or.reduceat(mask, first_choices(action))
    if not legal.all():
        index = int(legal.argmin())
        column = [column for column in action.columns if column.num_choices][index]
        raise EnvError(
            f"it returned the action mask {mask.tolist()}, which forbids all of action column {index} ({column}). "
            "Allow at least one."
        )


def first_choices(action: ActionSpec) -> Array:
    """Where in a mask each column begins."""
    return np.cumsum((0, *action.choices[:-1]))


def any_array(value: Any) -> Array:
    """The value as numpy sees it; an array that fits nowhere if that is none.

    Raises:
        EnvError: it has numbers that numpy may not read, such as a tensor that requires grad.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError):  # what does not convert, and lists of different lengths
        return np.array(None)
    except RuntimeError as error:
        raise EnvError(
            f"the environment returned a {type(value).__name__} that NumPy cannot read ({error}), expected numbers."
        ) from error


def _fits(array: Array, stored: np.dtype[Any]) -> bool:
    """Floats of any width are exchangeable; all other casts must be exact, for integers value by value.

    True is exactly 1.0, but an environment that returns it where a float is promised has mixed something up.
    """
    found = array.dtype
    if found.kind + stored.kind == "bf":
        return False
    if found == stored or found.kind + stored.kind == "ff" or np.can_cast(found, stored, "safe"):
        return True
    return found.kind in "iu" and stored.kind in "iu" and bool((array.astype(stored) == array).all())
