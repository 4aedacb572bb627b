"""Stored fields: one table, from which slots, batcher and batch are built, and which a run can extend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sf.errors import ConfigError
from sf.learner.batch import Batch
from sf.shared.arena import Array
from sf.shared.fields import Axes, StoredField, TrainingUse, Writer
from tests.helpers.lab import Lab, make_lab, make_lab_with_fields, step_until

EXTRA = {
    "novelty": StoredField(Axes.STEPS, "float32", Writer.INFERENCE, shape=(2,)),
    "goal": StoredField(Axes.STEPS_AND_LAST, "int64", Writer.ROLLOUT, TrainingUse.ON_HOST),
    "picture": StoredField(Axes.STEPS, "uint8", Writer.ROLLOUT, TrainingUse.STRAIGHT_TO_DEVICE, shape=(2, 2)),
    "difficulty": StoredField(Axes.TRAJECTORY, "float32", Writer.ROLLOUT, shape=(3,)),
    "level": StoredField(Axes.TRAJECTORY, "int64", Writer.ROLLOUT, TrainingUse.ON_HOST),
    "private": StoredField(Axes.STEPS, "float32", Writer.ROLLOUT, TrainingUse.UNUSED),
}


def numbered(array: Array) -> Array:
    """Every value of the array gets a number of its own, as far as the type goes."""
    return np.arange(array.size).reshape(array.shape).astype(array.dtype)


def first_batch(lab: Lab, roles: list[Any]) -> tuple[Batch, dict[int, int]]:
    """The first dataset of the first learner, and the slot that each group has filled for it."""
    topology, slots = lab.slots.topology, lab.slots
    step_until(
        [role for role in roles if not hasattr(role, "batcher")],
        lambda: len(slots.waiting_for(0)) == topology.num_groups,
    )
    full = {topology.group_of_slot(slot): int(slot) for slot in slots.waiting_for(0)}
    batch = roles[0].source.next()
    assert batch is not None
    return batch, full


@pytest.mark.parametrize("num_policies", [1, 2])
def test_extra_fields_reach_the_batch_time_first(num_policies: int, tmp_path: Path) -> None:
    """A dataset is the share of a sampling round, so that all slots of a group are full at once."""
    alone = make_lab(tmp_path / "alone", num_workers=2).config.learner
    flags: dict[str, Any] = {
        "batch_size": (alone.batch_size or 0) * alone.num_minibatches // num_policies,
        "num_batches_per_epoch": 1,
    }
    lab = make_lab_with_fields(EXTRA, tmp_path, num_workers=2, num_policies=num_policies, **flags)
    slots, roles = lab.slots, lab.build_all()
    for name in EXTRA:
        slots[name][...] = numbered(slots[name])
    batch, full = first_batch(lab, roles)
    steps, rows = slots.topology.rollout, slots.topology.rows
    assert batch["novelty"].shape == (steps, len(batch.streams), 2)
    assert batch["goal"].shape == (steps + 1, len(batch.streams))
    assert len(batch.streams) > rows, "of more than one slot"
    for b, stream in enumerate(batch.streams.tolist()):
        slot, row = full[stream // rows], stream % rows
        for name in ("novelty", "goal", "picture"):
            np.testing.assert_array_equal(batch[name][:, b], slots[name][slot, :, row])
        np.testing.assert_array_equal(batch["difficulty"][b], slots["difficulty"][slot, row])
        assert batch["level"][b] == slots["level"][slot, row]
    with pytest.raises(KeyError):
        batch["private"]
    for role in roles:
        role.close()


def test_every_field_that_training_needs_is_a_column_as_it_was_stored(tmp_path: Path) -> None:
    """Each has its own numbers, so that no column can stand for another."""
    lab = make_lab(tmp_path, num_workers=2, use_rnn=True)
    slots, roles = lab.slots, lab.build_all()
    step_until(roles[1:], lambda: len(slots.waiting_for(0)) == slots.topology.num_groups)
    random = np.random.default_rng(0)
    for name in slots.fields.keys() - {"policy_id"}:
        slots[name][...] = (100 * random.random(slots[name].shape)).astype(slots[name].dtype)
    batch, full = first_batch(lab, roles)
    assert {*batch.by_step, *batch.by_trajectory} == {*slots.fields, "streams", "valid"}
    rows = slots.topology.rows
    for b, stream in enumerate(batch.streams.tolist()):
        for name, field in slots.fields.items():
            of_slot, row = slots[name][full[stream // rows]], stream % rows
            match field.axes:
                case Axes.TRAJECTORY:
                    expected, column = of_slot[row], batch[name][b]
                case Axes.STEPS | Axes.STEPS_AND_LAST:
                    expected, column = of_slot[:, row], batch[name][:, b]
            np.testing.assert_array_equal(column, expected, err_msg=name)
    for role in roles:
        role.close()


def test_fields_are_written_by_the_role_that_the_table_names(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, use_rnn=True, max_episode_steps=5, num_workers=1)
    slots, roles = lab.slots, lab.build_all()
    writers = dict(zip(roles, (None, Writer.INFERENCE, Writer.ROLLOUT), strict=True))
    written: dict[str, set[Writer | None]] = {name: set() for name in slots.fields}
    for array in (slots[name] for name in slots.fields):
        array[...] = 3  # of no writer, so that every write shows
    for _ in range(200):
        for role, writer in writers.items():
            before = {name: slots[name].tobytes() for name in slots.fields}
            role.step()
            for name in slots.fields:
                if slots[name].tobytes() != before[name]:
                    written[name].add(writer)
    assert written == {name: {field.writer} for name, field in slots.fields.items()}
    for role in roles:
        role.close()


@pytest.mark.parametrize("name", ["rewards", "observations/obs", "filled", "request", "streams", "valid"])
def test_names_of_extra_fields_are_their_own(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"The name of the stored field '{name}' is taken"):
        make_lab_with_fields({name: EXTRA["novelty"]}, tmp_path)


def test_batch_with_other_columns_knows_its_columns() -> None:
    batch = Batch({"rewards": torch.zeros(2, 3)}, {})
    assert (batch.with_columns(rewards=torch.ones(2, 3)).rewards == 1).all()
    with pytest.raises(AssertionError, match="'behavior_log_probs'"):
        batch.with_columns(behavior_log_probs=torch.zeros(2, 3))
