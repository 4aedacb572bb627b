"""Checkpoints that are damaged, of something else, or in strange company: found out and told."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
import torch

from sf.errors import CheckpointError, ExitCode
from sf.storage import checkpoint, sealed
from sf.storage.checkpoint import load, load_newest
from sf.storage.differences import data_differences, tensor_differences
from tests.helpers.checkpoints import FILES, flip_bit, save_some, version_of


@pytest.mark.parametrize("name", FILES)
def test_fault_d4_flipped_bits_are_found(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    rng = random.Random(0)
    (path,) = save_some(tmp_path, 1)
    content = (path / name).read_bytes()
    for _ in range(340):
        flip_bit(path / name, rng.randrange(8 * len(content)))
        with pytest.raises(CheckpointError, match="cannot be used"):
            load(path)
        (path / name).write_bytes(content)
    assert load(path).version == 1


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_fault_d4_truncated_newest_is_put_aside_and_the_previous_one_used(
    tmp_path: Path, name: str, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    _, newest = save_some(tmp_path, 1, 2)
    content = (newest / name).read_bytes()
    (newest / name).write_bytes(content[: int(share * len(content))])
    with caplog.at_level(logging.INFO):
        assert version_of(tmp_path) == 1
    assert "CHECKPOINT DAMAGED" in caplog.text
    assert "damaged_checkpoint_000000002_200" in caplog.text
    assert "Loaded checkpoint" in caplog.text
    assert (tmp_path / "damaged_checkpoint_000000002_200" / name).exists()
    assert not newest.exists()
    save_some(tmp_path, 2)
    assert version_of(tmp_path) == 2


@pytest.mark.parametrize("name", FILES)
def test_fault_d4_missing_file_is_damage(tmp_path: Path, name: str) -> None:
    _, newest = save_some(tmp_path, 1, 2)
    (newest / name).unlink()
    assert version_of(tmp_path) == 1


def test_fault_d4_readers_that_do_not_own_the_directory_change_nothing(tmp_path: Path) -> None:
    _, newest = save_some(tmp_path, 1, 2)
    flip_bit(newest / checkpoint.STATE, 3)
    found = load_newest(tmp_path, put_aside=False)
    assert found is not None
    assert found.version == 1
    assert newest.exists()


def test_fault_d5_only_damaged_ones_are_refused_again_and_again(tmp_path: Path) -> None:
    for path in save_some(tmp_path, 1, 2):
        flip_bit(path / checkpoint.TENSORS, 100)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="No usable checkpoint") as caught:
            load_newest(tmp_path)
        assert caught.value.exit_code == ExitCode.CHECKPOINT
        assert str(caught.value).count("checkpoint_000000002_200") >= 1
        assert "--restart_behavior=restart" in str(caught.value)


def test_fault_d5_best_one_that_is_damaged_is_no_obstacle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is told, put aside, and the next one takes its place."""
    path = checkpoint.save(tmp_path / checkpoint.BEST, 1, 10, {"x": torch.ones(3)}, {"reward": 1.0})
    found = checkpoint.load_spare(tmp_path / checkpoint.BEST)
    assert found is not None
    assert found.data == {"reward": 1.0}
    (path / "state.json").write_bytes(b"{}")
    assert checkpoint.load_spare(tmp_path / checkpoint.BEST) is None
    assert f"The checkpoints in {tmp_path / checkpoint.BEST} are lost" in caplog.text
    assert caplog.text.count("put aside as damaged earlier") == 0, "it is told once"
    assert checkpoint.load_spare(tmp_path / checkpoint.BEST) is None


def test_fault_d3_directory_that_vanishes_does_not_come_back(tmp_path: Path) -> None:
    """What marks it as an experiment of ours would be missing."""
    with pytest.raises(CheckpointError, match=r"was not saved.*No such file or directory"):
        checkpoint.save(tmp_path / "gone" / "checkpoint_p0", 1, 10, {"x": torch.ones(3)}, {})
    assert not (tmp_path / "gone").exists()


def test_fault_d6_other_files_do_not_matter(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    directory = tmp_path / "run"
    save_some(directory, 1)
    (link_target,) = save_some(outside, 9)
    (directory / "checkpoint_000000009_900").symlink_to(link_target)
    for name in ("checkpoint_000000008_800.tmp", "checkpoint_8_8", "checkpoint_000000008_800x", "notes"):
        (directory / name).mkdir()
    (directory / "checkpoint_000000007_700").write_text("a file")
    leftover = directory / ".incoming-0123"
    leftover.mkdir()
    (leftover / checkpoint.TENSORS).write_text("torn")
    assert version_of(directory) == 1
    save_some(directory, 2, keep=1)
    assert version_of(directory) == 2
    assert not leftover.exists()
    assert (directory / "notes").exists()
    assert load(link_target).version == 9


def test_fault_d13_a_checkpoint_that_vanishes_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, newest = save_some(tmp_path, 1, 2)
    original = sealed.verify

    def verify(folder: Path, names: tuple[str, ...]) -> None:
        if folder == newest and newest.exists():
            newest.rename(tmp_path / ".outgoing-1")
        original(folder, names)

    monkeypatch.setattr(sealed, "verify", verify)
    assert version_of(tmp_path) == 1
    assert not list(tmp_path.glob("damaged_*"))


# ---------------------------------------------------------------------------------------------------------- differences


def test_fault_d7_tensor_differences() -> None:
    expected = {"same": torch.zeros(2), "shape": torch.zeros(3), "type": torch.zeros(3), "gone": torch.zeros(())}
    found = {
        "same": torch.ones(2),
        "shape": torch.zeros(3, 1),
        "type": torch.zeros(3, dtype=torch.float64),
        "new": torch.zeros(1),
    }
    assert tensor_differences(expected, found) == [
        "gone: missing, expected float32[]",
        "new: not expected, found float32[1]",
        "shape: expected float32[3], found float32[3, 1]",
        "type: expected float32[3], found float64[3]",
    ]
    assert tensor_differences(expected, expected) == []


def test_fault_d7_data_differences() -> None:
    expected = {"model": {"layers": [64, 64], "nonlinearity": "tanh"}, "env": "CartPole-v1", "old": 1}
    found = {"model": {"layers": [64, 32], "nonlinearity": "tanh", "rnn": True}, "env": "Acrobot-v1"}
    assert data_differences(expected, found) == [
        "env: expected 'CartPole-v1', found 'Acrobot-v1'",
        "model.layers: expected [64, 64], found [64, 32]",
        "model.rnn: not expected, found True",
        "old: missing, expected 1",
    ]
    assert data_differences(expected, dict(expected)) == []


def test_fault_d7_unknown_format_is_refused_and_left_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_some(tmp_path, 1)
    monkeypatch.setattr(sealed, "FORMAT", 2)
    monkeypatch.setattr(sealed, "__version__", "7.1.0")
    (newest,) = save_some(tmp_path, 2)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"is of format 2, but sf .* reads format 1: use sf 7\.1\.0, which has"):
        load_newest(tmp_path)
    assert newest.exists()
