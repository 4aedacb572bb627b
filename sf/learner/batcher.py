"""Makes the datasets of one learner out of full slots.

A dataset has a fixed number of trajectories, taken in the order in which slots became full. It may begin or end inside
a slot; a slot is given back when its last trajectory has been trained on. Copying into [T, B] happens here and nowhere
else. With several policies a learner looks at the trajectories of all of them and keeps those in which its own acted.
So its dataset varies in size, but no slot can wait for ever.

A learner on an accelerator gets one transfer per field, from buffers of the host in which the rows were gathered. Only
observations, which are large, go there slot by slot. A slot is given back when the transfers out of it are over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sf.learner.batch import Batch
from sf.nets.device import CPU
from sf.shared.arena import Array
from sf.shared.fields import StoredField, TrainingUse
from sf.shared.slots import Slots


@dataclass
class _OpenSlot:
    """A slot that this learner has taken, and how many of its rows are already in a dataset."""

    index: int
    used: int = 0
    was_trained_on: bool = False


@dataclass(frozen=True)
class _SlotRows:
    """Rows of one slot that go into the dataset."""

    slot: int
    rows: slice


class Batcher:
    """Takes slots, hands out datasets, gives slots back."""

    def __init__(
        self,
        policy_id: int,
        slots: Slots,
        trajectories: int,
        learner: int = 0,
        device: torch.device = CPU,
        tensors: Mapping[str, Tensor] | None = None,
    ):
        """Allocates room for one dataset.

        Args:
            policy_id: whose transitions are valid.
            slots: the shared trajectories.
            trajectories: rows of all policies together that make one dataset, or this learner's share of it.
            learner: which learner of the policy it is.
            device: of the datasets.
            tensors: [slots, ...] fields that are there and not in the slots.
        """
        self.policy_id, self.slots, self.trajectories = policy_id, slots, trajectories
        self.learner, self.device = learner, device
        self._open: list[_OpenSlot] = []
        self._is_handed_out = False
        self._trained_before: list[tuple[_OpenSlot, bool]] = []
        """Slots in the dataset that was released last, and whether there had been a step on some of them before."""
        self._streams = np.empty(trajectories, np.int64)
        self._by_step: dict[str, Tensor] = {}
        """Room for one dataset of the fields with steps."""
        self._by_trajectory: dict[str, Tensor] = {}
        """Room for one dataset of the other fields."""
        self._on_host = {name for name, field in slots.fields.items() if field.training is TrainingUse.ON_HOST}
        # Sources and destinations of `_gather`, by the axes of the field.
        self._of_steps: list[tuple[Array, Array]] = []
        self._of_steps_to_device: list[tuple[Array, Tensor]] = []
        self._of_trajectories: list[tuple[Array, Array]] = []
        self._tensors = tensors or {}
        for name, field in slots.fields.items():
            if field.training is not TrainingUse.UNUSED:
                self._add(name, field)
        self._transfers = None if device == CPU else torch.get_device_module(device).Event()

    def _add(self, name: str, field: StoredField) -> None:
        """Makes room for a field in the dataset, and has it gathered there."""
        has_time = field.axes.has_time
        shape = (*field.axes.in_batch(self.slots.topology.rollout, self.trajectories), *field.shape)
        rooms = self._by_step if has_time else self._by_trajectory
        if name in self._tensors:
            rooms[name] = torch.empty(shape, dtype=self._tensors[name].dtype, device=self.device)
            return
        array = self.slots[name]
        dtype = torch.from_numpy(array).dtype
        if self.device != CPU and field.training is TrainingUse.STRAIGHT_TO_DEVICE:
            assert has_time, f"{name} has no steps, so it is not large"
            rooms[name] = there = torch.empty(shape, dtype=dtype, device=self.device)
            self._of_steps_to_device.append((array, there))
            return
        is_pinned = self.device.type == "cuda" and field.training is TrainingUse.ON_DEVICE
        rooms[name] = room = torch.empty(shape, dtype=dtype, pin_memory=is_pinned)
        # Arrays take slices sooner than tensors: 90 for 540 us per 4,096 transitions.
        (self._of_steps if has_time else self._of_trajectories).append((array, room.numpy()))

    @property
    def num_used(self) -> int:
        """Trajectories that were handed out so far, those before a resume included."""
        own = self.slots.topology.slots_of_learner(self.learner)
        released = int(self.slots.released[own.start : own.stop, self.policy_id].sum())
        return released * self.slots.topology.rows + sum(slot.used for slot in self._open)

    @property
    def rows_waiting(self) -> int:
        """Trajectories that are complete and not yet in a dataset."""
        return sum(self.slots.topology.rows - slot.used for slot in self._open)

    def next(self, at_least: int | None = None) -> Batch | None:
        """The next dataset, or None while there is not enough; `release` it before asking again.

        Args:
            at_least: trajectories that are enough, of which it takes all there are; None for a whole dataset.
        """
        assert not self._is_handed_out, "the dataset before has not been released"
        self._take_full_slots()
        if self.rows_waiting < (self.trajectories if at_least is None else at_least):
            return None
        self._is_handed_out = True
        return self._assemble(self._choose())

    def release(self, was_trained_on: bool = True) -> int:
        """Gives back the slots whose last trajectory was in the dataset; returns how many.

        They may be filled again at once, so it waits until the device has read them.

        Args:
            was_trained_on: there was an optimizer step.
        """
        self._is_handed_out = False
        self._trained_before = [(slot, slot.was_trained_on) for slot in self._open if slot.used > 0]
        for slot, _ in self._trained_before:
            slot.was_trained_on |= was_trained_on
        if self._transfers is not None:
            self._transfers.synchronize()
        finished = [slot for slot in self._open if slot.used == self.slots.topology.rows]
        self._open = [slot for slot in self._open if slot.used < self.slots.topology.rows]
        for slot in finished:
            self.slots.release(slot.index, self.policy_id, slot.was_trained_on)
        return len(finished)

    def had_no_step(self) -> None:
        """Says that there was no optimizer step on the dataset that was released last, as one that is trained on."""
        for slot, was_trained_on in self._trained_before:
            slot.was_trained_on = was_trained_on
            if slot.used == self.slots.topology.rows and not was_trained_on:
                self.slots.was_unused(slot.index, self.policy_id)

    def state(self) -> list[tuple[int, int, bool]]:
        """The slots that it holds, as `_OpenSlot` has them; between two datasets."""
        return [(slot.index, slot.used, slot.was_trained_on) for slot in self._open]

    def load_state(self, state: list[tuple[int, int, bool]]) -> None:
        """The inverse of `state`."""
        self._open = [_OpenSlot(*one) for one in state]

    def _take_full_slots(self) -> None:
        for slot in self.slots.waiting_for(self.policy_id, self.learner):
            self.slots.take(int(slot), self.policy_id)
            self._open.append(_OpenSlot(int(slot)))

    def _choose(self) -> list[_SlotRows]:
        """The oldest trajectories, in an order in which the order of arrival leaves no trace."""
        pieces, missing = [], min(self.trajectories, self.rows_waiting)
        for slot in self._open:
            count = min(missing, self.slots.topology.rows - slot.used)
            if count == 0:
                break
            pieces.append(_SlotRows(slot.index, slice(slot.used, slot.used + count)))
            slot.used += count
            missing -= count
        # How often a slot was filled comes first, so that of two trajectories of one row the earlier one is first.
        return sorted(pieces, key=lambda piece: (int(self.slots.filled[piece.slot]), piece.slot))

    def _assemble(self, pieces: list[_SlotRows]) -> Batch:
        start = 0
        for piece in pieces:
            stop = start + piece.rows.stop - piece.rows.start
            self._gather(piece, slice(start, stop))
            start = stop
        by_step, by_trajectory, streams = self._by_step, self._by_trajectory, self._streams
        if start < self.trajectories:
            by_step = {name: room[:, :start] for name, room in by_step.items()}
            by_trajectory = {name: room[:start] for name, room in by_trajectory.items()}
            streams = streams[:start]
        batch = Batch(
            self._there(by_step) | {"valid": by_step["policy_id"] == self.policy_id},
            self._there(by_trajectory) | {"streams": torch.from_numpy(streams)},
        )
        if self._transfers is not None:
            self._transfers.record()
        if self.slots.topology.num_policies == 1:
            return batch
        return batch.trajectories(batch.valid.any(0).nonzero()[:, 0])

    def _gather(self, piece: _SlotRows, columns: slice) -> None:
        """Copies rows of a slot into columns of the dataset."""
        slot, rows = piece.slot, piece.rows
        for array, room in self._of_steps:
            room[:, columns] = array[slot, :, rows]
        for array, there in self._of_steps_to_device:
            steps = torch.from_numpy(array[slot])
            if rows.stop - rows.start == self.slots.topology.rows:
                there[:, columns].copy_(steps, non_blocking=True)
                continue
            for t, step in enumerate(steps):  # else the CPU would gather the rows first, which takes 20 times as long
                there[t, columns].copy_(step[rows], non_blocking=True)
        for array, room in self._of_trajectories:
            room[columns] = array[slot, rows]
        for name, tensor in self._tensors.items():
            if name in self._by_step:
                self._by_step[name][:, columns].copy_(tensor[slot, :, rows])
            elif name in self._by_trajectory:
                self._by_trajectory[name][columns].copy_(tensor[slot, rows])
        first_row = self.slots.topology.group_of_slot(slot) * self.slots.topology.rows
        self._streams[columns] = np.arange(rows.start, rows.stop) + first_row

    def _there(self, rooms: dict[str, Tensor]) -> dict[str, Tensor]:
        """The fields where training needs them; does not wait."""
        if self.device == CPU:
            return rooms
        return {
            name: room if name in self._on_host else room.to(self.device, non_blocking=True)
            for name, room in rooms.items()
        }
