"""What policies of plans answer in workers: anything else than they should is told with their name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sf.errors import UsageError
from sf.shared.arena import Array
from sf.spaces import ActionSpec

MOST_SHOWN = 8
"""Numbers in a message."""


def answer_of(policy: str, found: Any) -> tuple[Any, Any, Any]:
    """Actions, recurrent states and extra columns.

    Raises:
        UsageError: it is something else.
    """
    if isinstance(found, tuple) and len(found) == 3:
        return found
    raise UsageError(
        f"compute_actions of policy {policy!r} must return a tuple of actions, recurrent states and extra columns, but "
        f"returned a {type(found).__name__}."
    )


def checked_actions(actions: Any, policy: str, num_rows: int, spec: ActionSpec) -> Array:
    """The actions of some rows, which environments can take.

    Args:
        actions: that the policy gave.
        policy: its name.
        num_rows: that it acted for.
        spec: of one action.

    Raises:
        UsageError: there are more or fewer, or they are no choices of the space.
    """
    found, choices = np.asarray(actions), [column.num_choices for column in spec.columns]
    shape = (num_rows,) if spec.is_scalar else (num_rows, len(choices))
    if all(choices):
        numbers = f"whole numbers from 0 to {' and '.join(str(n - 1) for n in choices)}"
    else:
        numbers = "finite numbers"
    has_form = found.shape == shape and found.dtype.kind in "biuf"
    if not (has_form and _can_be_taken(found, choices)):
        values = "" if found.size > MOST_SHOWN else f" {found.tolist()}"
        raise UsageError(
            f"compute_actions of policy {policy!r} gave {found.dtype.name}{list(found.shape)}{values}, "
            f"expected an array of shape {list(shape)} with {numbers}."
        )
    return found


def _can_be_taken(actions: Array, choices: list[int]) -> bool:
    if all(choices):
        return bool(((actions >= 0) & (actions < choices) & (actions == np.floor(actions))).all())
    return bool(np.isfinite(actions).all())


def copies_of(columns: Mapping[str, Any], policy: str, num_rows: int) -> dict[str, Array]:
    """What a policy gave beside actions for so many rows, as arrays of their own.

    Raises:
        UsageError: a column has more or fewer values.
    """
    found = {name: np.array(values) for name, values in columns.items()}
    for name, values in found.items():
        if not values.ndim or len(values) != num_rows:
            raise UsageError(
                f"Acting of policy {policy!r} gave the column {name!r} in the shape {list(values.shape)} for "
                f"{num_rows} rows. Give one value for each row."
            )
    return found
