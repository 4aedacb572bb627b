"""Checkpoints: whole or absent, the newest ones remain."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.errors import CheckpointError, ExperimentError
from sf.storage import checkpoint, sealed
from sf.storage.checkpoint import load, load_newest, save
from sf.storage.experiment import Experiment
from sf.storage.names import list_checkpoints
from tests.helpers.checkpoints import DATA, flip_bit, save_some, snapshot, tensors_of, version_of


def test_round_trip(tmp_path: Path) -> None:
    tensors = {
        "float64": torch.rand(3, dtype=torch.float64),
        "rng": torch.get_rng_state(),
        "scalar": torch.tensor(2**40),
        "flag": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        "transposed": torch.rand(3, 2).t(),
        "parameter": torch.nn.Parameter(torch.rand(2)),
    }
    path = save(tmp_path / "policy-0", 12, 345, tensors, DATA)
    assert path.name == "checkpoint_000000012_345"
    for found in (load(path), load_newest(tmp_path / "policy-0")):
        assert found is not None
        assert (found.version, found.env_steps, found.data, found.path) == (12, 345, DATA, path)
        assert found.tensors.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found.tensors[name].dtype == tensor.dtype
            assert torch.equal(found.tensors[name], tensor), name


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_directories_that_cannot_be_synced(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems of networks refuse that; the files are durable all the same."""
    refuse_sync_of_directories(number, monkeypatch)
    save(tmp_path, 1, 10, {}, DATA)
    assert len(list_checkpoints(tmp_path)) == 1
    Experiment(str(tmp_path), "run", "resume").make_checkpoints(1)
    assert not list((tmp_path / "run").glob(".trial*"))


def test_what_a_save_needs_is_tried_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_sync_of_directories(errno.EIO, monkeypatch)
    with pytest.raises(ExperimentError, match=r"run cannot be used: Input/output error\. Choose another --train_dir"):
        Experiment(str(tmp_path), "run", "resume").make_checkpoints(1)


def refuse_sync_of_directories(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def test_views_of_one_memory_are_saved_apart(tmp_path: Path) -> None:
    save_some(tmp_path, 5)
    newest = load_newest(tmp_path)
    assert newest is not None
    assert torch.equal(newest.tensors["view"], tensors_of(5)["view"])


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    assert load_newest(tmp_path) is None
    assert load_newest(tmp_path / "absent") is None


def test_newest_is_the_highest_version_not_the_last_written_or_last_in_the_alphabet(tmp_path: Path) -> None:
    save_some(tmp_path, 1_000_000_000, 999_999_999, 3)
    assert version_of(tmp_path) == 1_000_000_000
    assert [int(path.name.split("_")[1]) for path in list_checkpoints(tmp_path)] == [3, 999_999_999, 1_000_000_000]


def test_files_are_private(tmp_path: Path) -> None:
    (path,) = save_some(tmp_path, 1)
    assert path.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in path.iterdir())


def test_saving_the_same_version_again_keeps_what_is_there(tmp_path: Path) -> None:
    (path,) = save_some(tmp_path, 1)
    before = snapshot(path)
    assert save_some(tmp_path, 1) == [path]
    assert snapshot(path) == before


def test_saving_the_same_version_again_replaces_a_damaged_one(tmp_path: Path) -> None:
    (path,) = save_some(tmp_path, 1)
    flip_bit(path / checkpoint.TENSORS, 999)
    save_some(tmp_path, 1)
    assert version_of(tmp_path) == 1


def test_checkpoint_of_the_same_name_is_replaced_at_once_if_that_is_wanted(tmp_path: Path) -> None:
    first, second = {"w": torch.ones(3)}, {"w": torch.zeros(3)}
    for tensors, replace, expected in ((first, False, first), (second, False, first), (second, True, second)):
        path = save(tmp_path, 7, 70, tensors, {}, replace=replace)
        assert torch.equal(load(path).tensors["w"], expected["w"])
        assert [one.name for one in tmp_path.iterdir()] == ["checkpoint_000000007_70"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EIO])
def test_names_that_cannot_be_exchanged(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system does not know how, the one that is there stays; anything else is an error."""
    path = save(tmp_path, 7, 70, {"w": torch.ones(3)}, {})

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(sealed, "exchange", refuse)
    if number == errno.EIO:
        with pytest.raises(CheckpointError, match="Earlier checkpoints are untouched"):
            save(tmp_path, 7, 70, {"w": torch.zeros(3)}, {}, replace=True)
    else:
        save(tmp_path, 7, 70, {"w": torch.zeros(3)}, {}, replace=True)
    assert load(path).tensors["w"].sum() == 3
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


# ------------------------------------------------------------------------------------------------------------ retention


def test_fault_d12_the_newest_remain(tmp_path: Path) -> None:
    save_some(tmp_path, 1, 2, 3, 4, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "checkpoint_000000003_300",
        "checkpoint_000000004_400",
    ]
    save_some(tmp_path / checkpoint.MILESTONES, 1, 2, 3)
    assert len(list_checkpoints(tmp_path / checkpoint.MILESTONES)) == 3


@pytest.mark.parametrize(("keep", "left"), [(1, [49]), (2, [49, 51]), (3, [49, 50, 51])])
def test_fault_d10_d12_what_was_just_saved_remains(tmp_path: Path, keep: int, left: list[int]) -> None:
    """A run that was killed goes on from a checkpoint that is older than its best one."""
    save_some(tmp_path, 48, 50, 51)
    (path,) = save_some(tmp_path, 49, keep=keep)
    assert path.is_dir()
    assert [one.version for one in map(load, list_checkpoints(tmp_path))] == left


def test_fault_d12_damaged_checkpoints_do_not_count(tmp_path: Path) -> None:
    paths = save_some(tmp_path, 1, 2, 3)
    flip_bit(paths[1] / checkpoint.STATE, 7)
    flip_bit(paths[2] / checkpoint.STATE, 7)
    save_some(tmp_path, 4, keep=2)
    whole = [path for path in list_checkpoints(tmp_path) if path not in paths[1:]]
    assert [load(path).version for path in whole] == [1, 4]


def test_fault_d12_a_failed_save_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = save_some(tmp_path, 1, 2, 3)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"was not saved: .*No space left"):
        save_some(tmp_path, 4, keep=2)
    assert list_checkpoints(tmp_path) == paths
