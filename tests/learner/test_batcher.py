"""Datasets out of slots: what the order of `next` and `release` promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf.learner.batcher import Batcher
from tests.helpers.lab import make_lab, step_until


def full(path: Path) -> Batcher:
    """A batcher of a learner whose slots hold one dataset."""
    lab = make_lab(path)
    roles = lab.build_all()
    step_until(roles[1:], lambda: len(lab.slots.waiting_for(0)) == lab.slots.topology.num_groups)
    batcher: Batcher = roles[0].source
    return batcher


def test_second_dataset_is_not_handed_out_before_the_first_is_released(tmp_path: Path) -> None:
    batcher = full(tmp_path)
    assert batcher.next() is not None
    with pytest.raises(AssertionError, match="has not been released"):
        batcher.next()
    assert batcher.release() > 0
    assert batcher.next() is None


def test_slots_are_given_back_after_the_transfers_out_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = full(tmp_path)
    happened: list[str] = []

    class Event:
        def record(self) -> None:
            happened.append("recorded")

        def synchronize(self) -> None:
            happened.append("waited")

    monkeypatch.setattr(batcher, "_transfers", Event())
    monkeypatch.setattr(batcher.slots, "release", lambda *_: happened.append("released"))
    batcher.next()
    assert happened == ["recorded"]
    batcher.release()
    assert happened[:3] == ["recorded", "waited", "released"]


def test_part_of_a_dataset_is_handed_out_where_it_is_enough(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    roles = lab.build_all()
    rows, num_groups = lab.slots.topology.rows, lab.slots.topology.num_groups
    batcher: Batcher = roles[0].source
    step_until(roles[1:], lambda: len(lab.slots.waiting_for(0)) == num_groups)
    whole = num_groups * rows
    assert batcher.trajectories == whole
    batcher.trajectories = whole + rows
    assert batcher.next(at_least=whole + 1) is None
    batch = batcher.next(at_least=1)
    assert batch is not None
    assert batch.valid.shape == (lab.slots.topology.rollout, whole), "all that there is"
    assert len(batch["streams"]) == whole
    assert batcher.release() == num_groups


@pytest.mark.parametrize("was_trained_on", [False, True])
def test_what_was_trained_on_of_a_slot_that_is_half_used_outlives_a_resume(
    tmp_path: Path, was_trained_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(tmp_path)
    roles = lab.build_all()
    rows = lab.slots.topology.rows
    batcher: Batcher = roles[0].source
    step_until(roles[1:], lambda: len(lab.slots.waiting_for(0)) > 0)
    batcher.trajectories = rows // 2
    assert batcher.next() is not None
    assert batcher.release(was_trained_on) == 0
    saved, batcher._open = batcher.state(), []
    batcher.load_state(saved)
    assert batcher.rows_waiting >= rows - rows // 2
    batcher.trajectories = rows - rows // 2
    released: list[bool] = []
    monkeypatch.setattr(batcher.slots, "release", lambda slot, policy_id, was_used: released.append(was_used))
    assert batcher.next() is not None
    assert batcher.release(False) == 1
    assert released == [was_trained_on]
