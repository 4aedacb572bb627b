"""What trajectories store, and the words that pass slots on: the table of the fields and their memory."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from sf.errors import ConfigError
from sf.shared.arena import Arena, Field
from sf.shared.fields import Axes, SlotArray, StoredField, TrainingUse, Writer, poison
from sf.shared.topology import Topology
from sf.spaces import EnvInfo

NO_VERSION = -1
UNLIMITED = 2**62
"""Slots that a group may begin where nothing bounds the policy lag."""
NO_POLICY = -1
OBSERVATIONS = "observations/"
"""Before the name of a leaf, in the name of its field."""
FINAL_OBSERVATIONS = "final_observations/"
LAST_OBSERVATIONS = "last_observations/"
HAS_LAST_OBSERVATION = "has_last_observation"
OF_THE_BATCHER = frozenset({"streams", "valid"})
"""Columns of a batch that the batcher works out; no field may have their names."""


class Discard(enum.IntEnum):
    """Why the content of a slot was thrown away, and so the column of `discarded`. Each has one writer."""

    WORKER_DIED = 0
    """Its rollout worker ended while it filled; by the supervisor, once the kernel has confirmed it."""


def slot_fields(info: EnvInfo, memory_size: int = 0) -> dict[str, StoredField]:
    """The table of everything that a trajectory stores; nothing else lists these fields."""
    steps, steps_and_last = Axes.STEPS, Axes.STEPS_AND_LAST
    rollout, inference, on_host = Writer.ROLLOUT, Writer.INFERENCE, TrainingUse.ON_HOST
    action = info.action
    observations = {
        f"{OBSERVATIONS}{key}": StoredField(
            steps_and_last, leaf.dtype, rollout, TrainingUse.STRAIGHT_TO_DEVICE, shape=leaf.shape
        )
        for key, leaf in info.observations.items()
    }
    return observations | {
        "is_new": StoredField(Axes.TRAJECTORY, "bool", rollout, on_host),
        "initial_memory": StoredField(Axes.TRAJECTORY, "float32", rollout, shape=(memory_size,), fill=0),
        "actions": StoredField(steps, action.dtype, inference, shape=action.shape),
        "log_probs": StoredField(steps, "float32", inference),
        "values": StoredField(steps_and_last, "float32", inference),
        "final_values": StoredField(steps, "float32", inference),
        "rewards": StoredField(steps, "float32", rollout),
        "terminated": StoredField(steps, "bool", rollout),
        "truncated": StoredField(steps, "bool", rollout),
        "policy_id": StoredField(steps, "int64", rollout, on_host, fill=0),
        "policy_version": StoredField(steps, "int64", inference, on_host, fill=NO_VERSION),
    }


def last_observation_fields(info: EnvInfo) -> dict[str, StoredField]:
    """Further fields: the observation after each step that a time limit cut, and whether there is one.

    The one that follows in the trajectory belongs to the next episode there.
    """
    leaves = {
        f"{LAST_OBSERVATIONS}{key}": StoredField(
            Axes.STEPS, leaf.dtype, Writer.ROLLOUT, TrainingUse.STRAIGHT_TO_DEVICE, leaf.shape, fill=0
        )
        for key, leaf in info.observations.items()
    }
    return leaves | {HAS_LAST_OBSERVATION: StoredField(Axes.STEPS, "bool", Writer.ROLLOUT, TrainingUse.ON_HOST, fill=0)}


def slot_memory(
    topology: Topology,
    info: EnvInfo,
    extra_fields: Mapping[str, StoredField] | None = None,
    in_tensors: bool = False,
) -> dict[str, Field]:
    """The arrays of everything that trajectories store, and of the words that pass slots on.

    Args:
        topology: their sizes.
        info: spaces of the environments.
        extra_fields: fields that trajectories store beside the fields of the table, for an algorithm or a policy.
        in_tensors: fields that training reads on its device lie there, and have no room here.

    Raises:
        ConfigError: an extra field has the name of something else.
    """
    stored, words = slot_fields(info, topology.memory_size), _words(topology, info, 0 if in_tensors else topology.rows)
    extra_fields = extra_fields or {}
    if taken := sorted(extra_fields.keys() & (stored.keys() | words.keys() | OF_THE_BATCHER)):
        raise ConfigError([f"The name of the stored field {name!r} is taken; choose another one." for name in taken])

    def slots(field: StoredField) -> int:
        return 0 if in_tensors and field.is_on_device else topology.num_slots

    table = stored | dict(extra_fields)
    return {
        name: field.in_memory(slots(field), topology.rollout, topology.rows) for name, field in table.items()
    } | words


def _words(topology: Topology, info: EnvInfo, final_rows: int) -> dict[str, Field]:
    """The words of the roles about slots and groups, and the state that a group keeps from one slot to the next."""
    slots, rows = topology.num_slots, topology.rows
    groups, policies = topology.num_groups, topology.num_policies
    final_observations = {
        f"{FINAL_OBSERVATIONS}{key}": Field((groups, final_rows, *leaf.shape), leaf.dtype, poison(leaf.dtype))
        for key, leaf in info.observations.items()
    }
    return final_observations | {
        "memory": Field((groups, 2, rows, topology.memory_size), "float32"),
        "has_final_observation": Field((groups, rows), "bool"),
        "filling": Field((slots,), "int64"),
        "filled": Field((slots,), "int64"),
        "discarded": Field((slots, len(Discard)), "int64"),
        "taken": Field((slots, policies), "int64"),
        "released": Field((slots, policies), "int64"),
        "unused": Field((slots, policies), "int64"),
        "fillers": Field((groups, policies), "int64"),
        "allowed_slots": Field((groups,), "int64", UNLIMITED),
        "request": Field((groups,), "int64"),
        "request_slot": Field((groups,), "int64", -1),
        "request_step": Field((groups,), "int64", -1),
        "answered": Field((groups, policies), "int64"),
    }


V = TypeVar("V")


def below(prefix: str, named: Mapping[str, V]) -> dict[str, V]:
    """Those whose name begins with the prefix, under the rest of the name."""
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def fields_from_heads(arena: Arena) -> tuple[str, ...]:
    """Names of the fields that further heads of the acting network give."""
    stored = {name: field.stored for name, field in arena.fields.items() if isinstance(field, SlotArray)}
    return tuple(name for name, field in stored.items() if field.from_head)
