"""The description of a field of a trajectory: its axes, its type, its writer and its use in training.

The standard fields are the entries of `sf.shared.slot_fields`. Slots, the batcher and the batch are loops over that
table. This module is the only place that knows where the axes of a field lie in the slots and in a batch:

    axes             in the slots              in a batch      example
    STEPS            [slots, T, rows, ...]     [T, B, ...]     rewards
    STEPS_AND_LAST   [slots, T+1, rows, ...]   [T+1, B, ...]   values; the last one follows the last step
    TRAJECTORY       [slots, rows, ...]        [B, ...]        initial_memory
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from sf.shared.arena import Field


class Axes(enum.Enum):
    """Along which axes a field has one value each; see the table above."""

    STEPS = enum.auto()
    STEPS_AND_LAST = enum.auto()
    TRAJECTORY = enum.auto()

    @property
    def has_time(self) -> bool:
        return self in (Axes.STEPS, Axes.STEPS_AND_LAST)

    def in_slots(self, slots: int, steps: int, rows: int) -> tuple[int, ...]:
        """The shape of the field in shared memory, before the shape of one value."""
        match self:
            case Axes.STEPS:
                return slots, steps, rows
            case Axes.STEPS_AND_LAST:
                return slots, steps + 1, rows
            case Axes.TRAJECTORY:
                return slots, rows

    def in_batch(self, steps: int, trajectories: int) -> tuple[int, ...]:
        """The shape of the field in a batch, before the shape of one value."""
        match self:
            case Axes.STEPS:
                return steps, trajectories
            case Axes.STEPS_AND_LAST:
                return steps + 1, trajectories
            case Axes.TRAJECTORY:
                return (trajectories,)


class Writer(enum.Enum):
    """The role that writes a field; the others only read it, but for `Slots.blank` before inference writes."""

    ROLLOUT = "rollout worker"
    INFERENCE = "inference worker"


class TrainingUse(enum.Enum):
    """Whether training needs a field, and where."""

    ON_DEVICE = enum.auto()
    """Gathered on the host, then moved to the device in one transfer."""
    STRAIGHT_TO_DEVICE = enum.auto()
    """Moved to the device slot by slot, without a copy on the host: for large values."""
    ON_HOST = enum.auto()
    """Only decides which transitions train, or in which order."""
    UNUSED = enum.auto()
    """Does not reach the batch."""


@dataclass(frozen=True)
class StoredField:
    """One entry of the table."""

    axes: Axes
    dtype: str
    """As numpy names it."""
    writer: Writer
    training: TrainingUse = TrainingUse.ON_DEVICE
    shape: tuple[int, ...] = ()
    """Shape of one value."""
    fill: float | None = None
    """Content of fresh memory. None takes nan or -1 where the type has it, so that reading unwritten data shows."""
    from_head: bool = False
    """Whether a further head of the acting network, which has the name of the field, gives it; see `head_field`."""

    @property
    def is_on_device(self) -> bool:
        """Whether training reads it on its device."""
        return self.training in (TrainingUse.ON_DEVICE, TrainingUse.STRAIGHT_TO_DEVICE)

    def in_memory(self, slots: int, steps: int, rows: int) -> SlotArray:
        """The array that holds the field of all slots."""
        fill = poison(self.dtype) if self.fill is None else self.fill
        return SlotArray((*self.axes.in_slots(slots, steps, rows), *self.shape), self.dtype, fill, stored=self)


def head_field(shape: tuple[int, ...] = (), of_last: bool = False) -> StoredField:
    """A field that the acting network computes, float32: what its encoder returns under this name from ``heads``.

    Args:
        shape: of one value.
        of_last: of the last observation of a trajectory as well, such as a value.
    """
    axes = Axes.STEPS_AND_LAST if of_last else Axes.STEPS
    return StoredField(axes, "float32", Writer.INFERENCE, shape=shape, from_head=True)


@dataclass(frozen=True, kw_only=True)
class SlotArray(Field):
    """Shared memory of a stored field. The entry travels with it, so that every process has the same table."""

    stored: StoredField


def poison(dtype: str) -> float:
    """The content of fresh memory that no writer would write, as far as the type has one."""
    kind = np.dtype(dtype).kind
    return float("nan") if kind == "f" else -1 if kind == "i" else 0
