"""The columns of sample batches in shared memory: which there are, found by a dummy batch, and where they lie.

Observations, actions and ends of episodes lie in the standard fields of a slot. Every other column is an extra field
with one value per step, named ``column/<name>``. Those that a policy adds are its own: ``column/<number of the
policy>/<name>``. So a fragment of a remote worker is read straight from its slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from sf.errors import UsageError
from sf.plans.policy import Policy, dummy_batch
from sf.plans.program import Column
from sf.shared.arena import Array
from sf.shared.fields import Axes, StoredField, Training, Writer
from sf.shared.slots import NO_POLICY, Slots
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


def columns_of(policies: Mapping[str, Policy]) -> dict[str, Column]:
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
                found[own_name(number, key)] = column
    return found


def own_name(policy: int, column: str) -> str:
    """Of a column that a policy adds."""
    return f"{policy}/{column}"


def columns_for(policy: int, columns: Iterable[str]) -> dict[str, str]:
    """The columns of the batches of a policy: from their names there to those of the fields."""
    prefix = own_name(policy, "")
    own = {name.removeprefix(prefix): name for name in columns if name.startswith(prefix)}
    return own | {name: name for name in columns if "/" not in name and name != POLICY}


def stored_fields(columns: Mapping[str, Column]) -> dict[str, StoredField]:
    """The extra fields of a run that hold them."""
    found = {}
    for name, column in columns.items():
        fill = 0 if column.may_be_whole else None  # poison is no whole number
        found[PREFIX + name] = StoredField(
            Axes.STEPS, column.dtype, Writer.INFERENCE, Training.UNUSED, column.shape, fill
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
