"""Checkpoints: whole or absent, verified before use, and no way for a file to do harm."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import pickle
import random
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sf.errors import CheckpointError, ExitCode
from sf.learner import checkpoint, sealed
from sf.learner.checkpoint import list_checkpoints, load, load_newest, save
from sf.learner.differences import data_differences, tensor_differences

FILES = (checkpoint.TENSORS, checkpoint.STATE, sealed.MANIFEST)
DATA = {"config": {"env": "CartPole-v1", "layers": [64, 64]}, "reward": None, "pi": 3.25}


def tensors_of(version: int) -> dict[str, Tensor]:
    flat = torch.arange(12.0) + version
    return {"flat": flat, "view": flat[3:9].view(2, 3), "step": torch.tensor(version), "noise": torch.rand(300)}


def save_some(directory: Path, *versions: int, keep: int | None = None) -> list[Path]:
    return [save(directory, v, 100 * v, tensors_of(v), DATA, keep) for v in versions]


def version_of(directory: Path) -> int:
    newest = load_newest(directory)
    assert newest is not None
    assert newest.tensors["step"].item() == newest.version
    return newest.version


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position // 8] ^= 1 << position % 8
    path.write_bytes(content)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ------------------------------------------------------------------------------------------------------------ basics


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


# --------------------------------------------------------------------------------------------------------- retention


def test_fault_d12_the_newest_remain(tmp_path: Path) -> None:
    save_some(tmp_path, 1, 2, 3, 4, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "checkpoint_000000003_300",
        "checkpoint_000000004_400",
    ]
    save_some(tmp_path / checkpoint.MILESTONES, 1, 2, 3)
    assert len(list_checkpoints(tmp_path / checkpoint.MILESTONES)) == 3


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


# --------------------------------------------------------------------------------------------------- failures of save


class Crash(BaseException):
    """The process dies: no handler of ours runs."""


def fail_at(monkeypatch: pytest.MonkeyPatch, position: int, error: BaseException) -> list[str]:
    """Makes the system call number `position` of a save raise; returns the list of calls, filled as they happen."""
    calls: list[str] = []

    def wrap(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) - 1 == position:
                raise error
            return original(*args, **kwargs)

        return call

    for name in ("open", "fsync", "fdopen"):
        monkeypatch.setattr(os, name, wrap(name, getattr(os, name)))
    for name in ("mkdir", "rename", "read_bytes"):
        monkeypatch.setattr(Path, name, wrap(name, getattr(Path, name)))
    return calls


def count_calls(directory: Path, keep: int | None) -> int:
    with pytest.MonkeyPatch.context() as patch:
        calls = fail_at(patch, -1, Crash())
        save_some(directory, 2, keep=keep)
    return len(calls)


def test_fault_d1_crash_anywhere_in_a_save_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    save_some(tmp_path / "count", 1)
    num_calls = count_calls(tmp_path / "count", keep=1)
    assert num_calls > 12
    found = []
    for position in range(num_calls):
        directory = tmp_path / str(position)
        save_some(directory, 1)
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, position, Crash())
            with pytest.raises(Crash):
                save_some(directory, 2, keep=1)
        found.append(version_of(directory))
        save_some(directory, 3, keep=2)
        assert version_of(directory) == 3
        assert not [path for path in directory.iterdir() if path.name.startswith(".")], "temporaries are collected"
    assert found == sorted(found)
    assert set(found) == {1, 2}


def test_fault_d2_error_anywhere_in_a_save_keeps_the_old_one_and_says_which_case(tmp_path: Path) -> None:
    save_some(tmp_path / "count", 1)
    for position in range(count_calls(tmp_path / "count", keep=None)):
        directory = tmp_path / str(position)
        (old,) = save_some(directory, 1)
        before = snapshot(old)
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, position, OSError(errno.EIO, "Input/output error"))
            with pytest.raises(CheckpointError, match=r"Input/output error") as caught:
                save_some(directory, 2)
        assert snapshot(old) == before
        assert not [path for path in directory.iterdir() if path.name.startswith(".")]
        committed = "is written, but whether it survives" in str(caught.value)
        assert committed != ("was not saved" in str(caught.value))
        assert version_of(directory) == (2 if committed else 1)


def test_fault_d2_old_checkpoints_that_cannot_be_removed_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_some(tmp_path, 1, 2)
    original = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == "checkpoint_000000001_100":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return original(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    save_some(tmp_path, 3, keep=2)
    assert "Could not remove the old checkpoint" in caplog.text
    assert version_of(tmp_path) == 3


def test_fault_d2_file_size_limit(tmp_path: Path) -> None:
    """A real limit of the kernel in a process of its own, because it cannot be raised again."""
    save_some(tmp_path, 1)
    code = f"""
import resource, signal
from pathlib import Path
import torch
from sf.errors import CheckpointError
from sf.learner.checkpoint import save
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    save(Path({str(tmp_path)!r}), 2, 200, {{"big": torch.zeros(100_000)}}, {{}})
except CheckpointError as error:
    raise SystemExit(int(error.exit_code))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == ExitCode.CHECKPOINT
    assert version_of(tmp_path) == 1
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_fault_d3_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(CheckpointError, match="was not saved"):
        save_some(tmp_path / "file" / "checkpoints", 1)


# ------------------------------------------------------------------------------------------------------------ damage


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


# ------------------------------------------------------------------------------------------------------- differences


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
    (newest,) = save_some(tmp_path, 2)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="is of format 2, but this version reads format 1"):
        load_newest(tmp_path)
    assert newest.exists()


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

    monkeypatch.setattr(checkpoint, "_exchange", refuse)
    if number == errno.EIO:
        with pytest.raises(CheckpointError, match="Earlier checkpoints are untouched"):
            save(tmp_path, 7, 70, {"w": torch.zeros(3)}, {}, replace=True)
    else:
        save(tmp_path, 7, 70, {"w": torch.zeros(3)}, {}, replace=True)
    assert load(path).tensors["w"].sum() == 3
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


# ----------------------------------------------------------------------------------------------------------- attacks


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "ran")


def header(description: dict[str, Any], body: bytes = b"", claimed_size: int | None = None) -> bytes:
    text = json.dumps(description).encode()
    return struct.pack("<Q", len(text) if claimed_size is None else claimed_size) + text + body


def one(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def sealed_folder(directory: Path, files: dict[str, bytes]) -> Path:
    """A checkpoint by somebody who knows how manifests are made."""
    path = directory / "checkpoint_000000001_1"
    path.mkdir(parents=True)
    sealed.write(path, files)
    return path


ATTACKS: dict[str, bytes] = {
    "oversized header": header({}, claimed_size=2**62),
    "header beyond the file": header({"a": one()}, b"\0" * 8, claimed_size=10_000),
    "overlapping offsets": header({"a": one(), "b": one(offsets=(4, 12))}, b"\0" * 12),
    "offsets beyond the file": header({"a": one(shape=(2**40,), offsets=(0, 2**42))}, b"\0" * 8),
    "shape and size disagree": header({"a": one(shape=(2**61,))}, b"\0" * 8),
    "shape overflows": header({"a": one(shape=(2**32, 2**32, 2**32))}, b"\0" * 8),
    "negative offsets": header({"a": one(offsets=(-8, 0))}, b"\0" * 8),
    "unknown type": header({"a": one(dtype="OBJECT")}, b"\0" * 8),
    "not a header": struct.pack("<Q", 4) + b"[][]",
    "deep header": struct.pack("<Q", 20_000) + b"[" * 20_000,
    "empty": b"",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_fault_d8_malformed_tensor_files_are_rejected(tmp_path: Path, name: str) -> None:
    path = sealed_folder(tmp_path, {checkpoint.TENSORS: ATTACKS[name], checkpoint.STATE: b"{}"})
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(path)


ODD: tuple[Any, ...] = (-1, 0, 1, 2**31, 2**63, 2**64, 1.5, "x", None, True, [], {}, [0, 8])
TYPES = "F32", "F64", "BOOL", "U64", "C64", "F4", "F6_E2M3", "F8_E8M0", "F8_E4M3", "BF16"


def fuzzed(source: random.Random, tensors: bytes) -> bytes:
    """A tensor file with something odd in its header, or a few of its bytes."""
    (size,) = struct.unpack("<Q", tensors[:8])
    description, body = json.loads(tensors[8 : 8 + size]), tensors[8 + size :]
    if source.random() < 0.3:
        content = bytearray(tensors)
        for _ in range(source.randint(1, 4)):
            content[source.randrange(min(len(content), size + 8))] = source.randrange(256)
        return bytes(content[: source.choice([len(content), source.randrange(len(content))])])
    for _ in range(source.randint(1, 3)):
        one = description[source.choice([name for name in description if name != "__metadata__"])]
        match source.randrange(6):
            case 0:
                one["dtype"] = source.choice([*ODD, *TYPES])
            case 1:
                one[source.choice(["shape", "data_offsets"])] = source.choice(ODD)
            case 2 if isinstance(one.get("data_offsets"), list) and one["data_offsets"]:
                one["data_offsets"][source.randrange(len(one["data_offsets"]))] = source.choice([*ODD, 4, 8, 12])
            case 3 if isinstance(one.get("shape"), list):
                one["shape"].append(source.choice(ODD))
            case 4:
                one.pop(source.choice(list(one)), None) if one else None
            case _:
                description[source.choice(["../x", "", "policy/\0", "a" * 1000])] = dict(one)
    return header(description, body, source.choice([None, None, None, 0, size - 1, 2**63]))


def test_fault_d8_odd_tensor_files_are_read_as_they_are_or_rejected(tmp_path: Path) -> None:
    (whole,) = save_some(tmp_path / "whole", 1)
    tensors, source, rejected = (whole / checkpoint.TENSORS).read_bytes(), random.Random(1), 0
    for number in range(500):
        content = fuzzed(source, tensors)
        path = sealed_folder(tmp_path / str(number), {checkpoint.TENSORS: content, checkpoint.STATE: b"{}"})
        try:
            read = load(path)
        except CheckpointError:
            rejected += 1
        else:
            assert sum(tensor.nbytes for tensor in read.tensors.values()) <= len(content)
        shutil.rmtree(tmp_path / str(number))
    assert 300 < rejected < 500, "some that are odd are still whole"


def test_fault_d8_pickles_never_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    payload = pickle.dumps({"policy": Canary(canary)})
    torch_payload = tmp_path / "payload.pth"
    torch.save({"policy": Canary(canary)}, torch_payload)
    for number, content in enumerate((payload, torch_payload.read_bytes())):
        for file in (checkpoint.TENSORS, checkpoint.STATE):
            files = {checkpoint.TENSORS: header({}), checkpoint.STATE: b"{}", file: content}
            with pytest.raises(CheckpointError, match="cannot be read"):
                load(sealed_folder(tmp_path / f"{number}-{file}", files))
    assert not canary.exists()


@pytest.mark.parametrize("content", [b"[1]", b"\xff\xfe", b"[" * 100_000, b"", b'{"a":'])
def test_fault_d8_malformed_state_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = sealed_folder(tmp_path, {checkpoint.TENSORS: header({}), checkpoint.STATE: content})
    with pytest.raises(CheckpointError, match=r"cannot be read|expected an object"):
        load(path)


def test_fault_d8_manifest_may_only_name_the_two_files(tmp_path: Path) -> None:
    (path,) = save_some(tmp_path, 1)
    secret = tmp_path / "secret"
    secret.write_text("x")
    manifest = json.loads((path / sealed.MANIFEST).read_text())
    del manifest["sha256"]
    manifest["files"]["../secret"] = {"sha256": hashlib.sha256(b"x").hexdigest(), "size": 1}
    manifest["sha256"] = hashlib.sha256(sealed.canonical_json(manifest)).hexdigest()
    (path / sealed.MANIFEST).write_bytes(sealed.canonical_json(manifest))
    with pytest.raises(CheckpointError, match=r"lists \['../secret'"):
        load(path)


@pytest.mark.parametrize(
    "manifest", [b"{}", b"[]", b"null", b"[" * 50_000, b'{"sha256":1}', b"\xff", b"{" + b" " * (2 << 20) + b"}"]
)
def test_fault_d8_malformed_manifest_is_rejected(tmp_path: Path, manifest: bytes) -> None:
    (path,) = save_some(tmp_path, 1)
    (path / sealed.MANIFEST).write_bytes(manifest)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        load(path)


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_fault_d8_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    (path,) = save_some(tmp_path / "run", 1)
    target = path / checkpoint.STATE
    content = target.read_bytes()
    target.unlink()
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        target.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(target)
    else:
        target.mkdir()
    with pytest.raises(CheckpointError, match=r"state\.json is missing or not a regular file"):
        load(path)
