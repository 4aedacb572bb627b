"""Policies that are functions of a user instead of networks.

In: stored observations, row by row. Out: stored actions. The function sees what an environment shows one agent, and
returns what the environment takes. So it may be tried out beside an environment, without this package.
"""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sf.by_value import without_arguments
from sf.envs.leaves import any_array
from sf.errors import ConfigError, EnvError, text_of
from sf.shared.arena import Array
from sf.spaces import ACTION_MASK, ActionBounds, ActionColumn, ActionPart, EnvInfo, LeafSpec
from sf.spaces.scaling import scale_of

PlayerFunction = Callable[[Any, np.random.Generator], Any]
"""Function of a user: observation of one agent, random numbers; an action of the space of the environment."""

LONGEST_SHOWN = 200
"""Characters of an observation or an action in a message."""


class ScriptedPolicy:
    """Acts by the function ``module:function``, called as ``player(observation, random)`` for every row.

    The observation is an array, or dicts and tuples of arrays, as the environment returns it for one agent, with its
    mask if there is one. The function may write into it. `random` is a numpy Generator, shared by all rows.
    """

    def __init__(self, name: str, info: EnvInfo, action_bounds: ActionBounds = "scale") -> None:
        """Finds the function.

        Args:
            name: ``module:function``.
            info: the spaces of the environment.
            action_bounds: how stored numbers of Box actions become those of the environment.

        Raises:
            ConfigError: the function is not found, or is none.
        """
        self.name, self.info = name, info
        self._player: PlayerFunction = function_named(name, "", " is no scripted policy, expected module:function.")
        self._numbers_of = [(part, _converter(part, action_bounds)) for part in _parts_with_columns(info)]
        choices = np.array(info.action.choices, np.int64)
        self._first_choices = np.cumsum(choices) - choices  # where in a mask each column of choices begins
        self._are_choices = np.array([column.num_choices > 0 for column in info.action.columns])

    def actions(self, observations: Mapping[str, Array], random: np.random.Generator) -> Array:
        """The stored actions of some rows, [rows, *info.action.shape] of `info.action.dtype`.

        Args:
            observations: leaves, [rows, *leaf.shape] each.
            random: numbers for the function.

        Raises:
            EnvError: the function raises, or returns no action of the space, or one that the mask forbids.
        """
        num_rows = len(next(iter(observations.values())))
        actions = np.zeros((num_rows, len(self.info.action.columns)), self.info.action.dtype)
        for row in range(num_rows):
            actions[row] = self._columns({name: array[row] for name, array in observations.items()}, random)
        return actions.reshape(num_rows, *self.info.action.shape)

    def _columns(self, leaves: Mapping[str, Any], random: np.random.Generator) -> Array:
        """The columns of the action for one observation, [columns]."""
        try:
            action = self._player(_nest(leaves, self.info.observations), random)
        except Exception as error:
            raise EnvError(f"{self._call(leaves)} raised {type(error).__name__}: {text_of(error)}") from error
        try:
            columns = np.concatenate([convert(_value_at(action, part)) for (part, _), convert in self._numbers_of])
            self._expect_allowed(columns, leaves)
        except _NoAction as problem:
            expected = f"expected an action of {self.info.env_id}: {self.info.action}."
            raise EnvError(f"{self._call(leaves)} returned {_short(action)}{problem}, {expected}") from None
        return columns

    def _call(self, leaves: Mapping[str, Any]) -> str:
        """The beginning of a sentence about one call."""
        return f"{self.name}, called with the observation {_short(_nest(leaves, self.info.observations))},"

    def _expect_allowed(self, columns: Array, leaves: Mapping[str, Any]) -> None:
        if ACTION_MASK not in leaves:
            return
        chosen = columns[self._are_choices].astype(np.int64)
        if not leaves[ACTION_MASK][self._first_choices + chosen].all():
            raise _NoAction(", which the mask forbids")


class _NoAction(Exception):
    """What a function has returned is no action; the text goes on with the sentence."""


Part = tuple[ActionPart, list[ActionColumn]]


def _parts_with_columns(info: EnvInfo) -> list[Part]:
    """The arrays of an action, and the columns of each."""
    columns = iter(info.action.columns)
    return [(part, [next(columns) for _ in range(int(np.prod(part.shape)))]) for part in info.action.parts]


def _converter(part: Part, bounds: ActionBounds) -> Callable[[Any], Array]:
    """The inverse of `sf.envs.actions`: from a value of a user to stored columns, [columns] float64 or int64."""
    array_of, columns = part
    low = np.array([column.start if column.num_choices else column.low for column in columns])
    high = np.array(
        [column.start + column.num_choices - 1 if column.num_choices else column.high for column in columns]
    )
    are_choices, to_stored = bool(columns[0].num_choices), _to_stored(low, high, bounds)

    def convert(value: Any) -> Array:
        array = any_array(value)
        if array.shape != array_of.shape or array.dtype.kind not in ("iub" if are_choices else "iuf"):
            raise _NoAction(f" of type {type(value).__name__}")
        numbers = array.reshape(-1).astype(np.int64 if are_choices else array_of.dtype)  # bounds have this type too
        if not ((numbers >= low) & (numbers <= high) & np.isfinite(numbers)).all():
            raise _NoAction("")
        return numbers - low if are_choices else to_stored(numbers)

    return convert


def _to_stored(low: Array, high: Array, bounds: ActionBounds) -> Callable[[Array], Array]:
    """From numbers of a Box within their bounds to what is stored."""
    if bounds == "clip":
        return lambda numbers: numbers
    if bounds == "scale":
        middle, half = scale_of(low, high)
        return lambda numbers: (numbers - middle) / half
    largest = 1 - np.finfo(np.float32).eps  # tanh comes this near to the bounds

    def inverse_of_tanh(numbers: Array) -> Array:
        inside: Array = np.arctanh(np.clip((2 * numbers - low - high) / (high - low), -largest, largest))
        return inside

    return inverse_of_tanh


def _value_at(action: Any, part: ActionPart) -> Any:
    for key in part.path:
        try:
            action = action[key]
        except (KeyError, IndexError, TypeError):
            raise _NoAction(f" without the entry {'/'.join(map(str, part.path))!r}") from None
    return action


def _nest(leaves: Mapping[str, Any], specs: Mapping[str, LeafSpec]) -> Any:
    """One observation as the environment returns it; nests whose keys are integers are tuples."""
    tree: dict[Any, Any] = {}
    for name, leaf in leaves.items():
        node, path = tree, ((), *specs[name].path)
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf.copy()
    return _with_tuples(tree[()])


def _with_tuples(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    parts = {key: _with_tuples(part) for key, part in node.items()}
    return tuple(parts.values()) if all(isinstance(key, int) for key in parts) else parts


def _short(value: Any) -> str:
    return textwrap.shorten(repr(value), LONGEST_SHOWN)


def function_named(name: str, flag: str, forms: str) -> Callable[..., Any]:
    """The function behind ``module:function``.

    Args:
        name: as the user gives it.
        flag: begins each message, before the name.
        forms: ends the message about a name of another form.

    Raises:
        ConfigError: there is none.
    """
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ConfigError([f"{flag}{name}{forms}"])
    try:
        with without_arguments():
            found: Any = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise ConfigError(
            [
                f"{flag}{name} cannot be imported: {text_of(error)}. Check the names, and that the module is in the "
                "working directory, in PYTHONPATH or in an installed package."
            ]
        ) from error
    if not callable(found):
        raise ConfigError([f"{flag}{name} is of type {type(found).__name__}, expected a function."])
    named: Callable[..., Any] = found
    return named
