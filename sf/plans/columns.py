"""The columns of sample batches in shared memory: which there are, found by a dummy batch, and where they lie.

Observations, actions and ends of episodes lie in the standard fields of a slot. Every other column is an extra field
with one value per step, named ``column/<name>``. Those that a policy adds are its own: ``column/<number of the
policy>/<name>``. So a fragment of a remote worker is read straight from its slot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sf.errors import UsageError
from sf.plans.policy import PlanPolicy, dummy_batch
from sf.plans.program import Column
from sf.shared.arena import Array
from sf.shared.fields import Axes, StoredField, TrainingUse, Writer
from sf.shared.slot_fields import NO_POLICY
from sf.shared.slots import Slots
from sf.spaces import EnvInfo

PREFIX = "column/"
OF_THE_SLOT = frozenset({"obs", "actions", "terminateds", "truncateds"})
"""Columns that are standard fields; postprocessing must leave them as they are."""
NOT_SENT = frozenset({"infos"})
"""Columns that stay in the worker, because they are no arrays."""
COMMON = frozenset({"new_obs", "rewards", "dones", "eps_id", "unroll_id", "agent_index", "t"})
"""Columns that all policies have."""
POLICY = "policy"
"""Number of the policy that acted, in the order of the program."""
ORDERS = "orders"
"""Name of the field with the number of the orders under which a fragment was begun."""


def observation_leaf(info: EnvInfo) -> str:
    """The name of the only observation.

    Raises:
        UsageError: there are several.
    """
    if len(info.observations) != 1:
        raise UsageError(
            f"{info.env_id} observes {', '.join(info.observations)}. Plans take one array: wrap the environment in "
            "gymnasium.wrappers.FlattenObservation."
        )
    return next(iter(info.observations))


def columns_of(policies: Mapping[str, PlanPolicy]) -> dict[str, Column]:
    """Every column that any of the policies has after its postprocessing, without those of the slots.

    Raises:
        UsageError: postprocessing changes the number of rows, or the type of a column that all policies have; or a
            policy adds what is no number.
    """
    found: dict[str, Column] = {POLICY: Column("int64", ())}
    for number, (name, policy) in enumerate(policies.items()):
        dummy = dummy_batch(policy)
        rows, batch = dummy.count, policy.postprocess_trajectory(dummy.copy())
        if batch.count != rows:
            raise UsageError(f"Postprocessing of policy {name!r} made {batch.count} rows of {rows}. It must keep them.")
        for key in OF_THE_SLOT:
            if not np.array_equal(batch[key], dummy[key]):
                raise UsageError(f"Postprocessing of policy {name!r} changed {key!r}. Add a column of another name.")
        for key in [key for key in batch if key not in OF_THE_SLOT | NOT_SENT]:
            column = Column.of(batch[key]) if key in COMMON else Column.added(key, batch[key])
            before = found.setdefault(key, Column.of(dummy[key])) if key in COMMON else column
            if before != column:
                raise UsageError(
                    f"Postprocessing of policy {name!r} made {column} of the column {key!r}, which is {before}. Add a "
                    "column of another name."
                )
            if key not in COMMON:
                found[own_name(number, key)] = replace(column, by_postprocessing=key not in dummy)
    return found


def acted_columns(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Those that are there before postprocessing."""
    return {name: column for name, column in columns.items() if not column.by_postprocessing}


def expect_columns(policy: str, gave: Collection[str], expected: Collection[str], did: str) -> None:
    """Refuses columns that are missing or new.

    Args:
        policy: its name.
        gave: names that it gave now.
        expected: names that it gave for a batch of zeros.
        did: what it did, for the message.

    Raises:
        UsageError: they are not the same.
    """
    for count, names in (("no", set(expected) - set(gave)), ("a new", set(gave) - set(expected))):
        if names:
            raise UsageError(
                f"{did} of policy {policy!r} gave {count} column {', '.join(map(repr, sorted(names)))}, unlike for a "
                "batch of zeros. Give the same columns in every call."
            )


def fitting(values: Any, target: Array) -> Array:
    """The values as the type of a part of shared memory; floating-point numbers are rounded to it.

    Raises:
        TypeError: a whole number or a truth value would become another one.
        ValueError: they have another shape.
        FloatingPointError: a number is too large.
    """
    array = np.asarray(values)
    if array.shape != target.shape:
        raise ValueError("another shape")
    if array.dtype == target.dtype or np.can_cast(array.dtype, target.dtype, "safe"):
        return array
    if array.dtype.kind in "iu" and target.dtype.kind in "iu" and array.size:
        limits = np.iinfo(target.dtype)
        if not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
            raise TypeError("out of range")
    with np.errstate(over="raise"):
        return array.astype(target.dtype, casting="same_kind")


def store(values: Any, stored: Array, places: Any, policy: str, name: str, before: Column) -> None:
    """Writes values of a column into places of its field.

    Args:
        values: of rows, or of steps of rows.
        stored: the field.
        places: in it.
        policy: its name.
        name: of the column.
        before: the column as it was for a batch of zeros.

    Raises:
        UsageError: they do not fit.
    """
    try:
        stored[places] = fitting(values, stored[places])
    except (TypeError, ValueError, FloatingPointError) as error:
        given = np.asarray(values)
        shape = list(given.shape[stored[places].ndim - len(before.shape) :])
        raise UsageError(
            f"Policy {policy!r} gave the column {name!r} as {given.dtype.name}{shape}, but for a batch of zeros it was "
            f"{before}. A column has the same type and shape in every call."
        ) from error


def own_name(policy: int, column: str) -> str:
    """The name of a column that a policy adds."""
    return f"{policy}/{column}"


def columns_for(policy: int, columns: Iterable[str]) -> dict[str, str]:
    """The columns of the batches of a policy: from their names there to those of the fields."""
    prefix = own_name(policy, "")
    own = {name.removeprefix(prefix): name for name in columns if name.startswith(prefix)}
    return own | {name: name for name in columns if "/" not in name and name != POLICY}


def stored_fields(columns: Mapping[str, Column]) -> dict[str, StoredField]:
    """The extra fields of a run that hold them, and what a driver knows fragments by."""
    found = {ORDERS: StoredField(Axes.TRAJECTORY, "int64", Writer.INFERENCE, TrainingUse.UNUSED)}
    for name, column in columns.items():
        fill = 0 if column.may_be_whole else None  # poison is no whole number
        found[PREFIX + name] = StoredField(
            Axes.STEPS, column.dtype, Writer.INFERENCE, TrainingUse.UNUSED, column.shape, fill
        )
    return found


def read_fragment(slots: Slots, slot: int, leaf: str, columns: Mapping[str, Column]) -> dict[str, Array]:
    """All transitions of a slot, one row of environments after the other, each in the order of time; copies."""
    steps = slots.topology.rollout
    stored = {"obs": slots.observations[leaf][slot, :steps], "actions": slots.actions[slot]}
    stored |= {"terminateds": slots.terminated[slot], "truncateds": slots.truncated[slot]}
    stored["policy_version"] = slots.policy_version[slot]
    stored |= {name: slots[PREFIX + name][slot] for name in columns}
    counts = np.ascontiguousarray(slots.policy_id[slot].T).reshape(-1) != NO_POLICY  # the others are fillers
    everything = bool(counts.all())
    found = {}
    for name, array in stored.items():
        rows = np.ascontiguousarray(np.swapaxes(array, 0, 1)).reshape(-1, *array.shape[2:])
        found[name] = rows if everything else rows[counts]
        if name in columns:
            found[name] = columns[name].read(found[name])
    return found
