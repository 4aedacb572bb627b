"""Checkpoints made to do harm: no code runs, no memory is taken, no other file is touched."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.errors import CheckpointError
from sf.storage import checkpoint, sealed
from sf.storage.checkpoint import load, save
from tests.helpers.checkpoints import save_some


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


@pytest.mark.more
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


NUMBERS = 32 * 2**20


def large(kind: str) -> dict[str, bytes]:
    """The files of a checkpoint of 32 MiB, honest or not."""
    numbers = one("U8", (NUMBERS,), (0, NUMBERS))
    match kind:
        case "honest":
            return {checkpoint.TENSORS: header({"a": numbers}, b"\0" * NUMBERS), checkpoint.STATE: b"{}"}
        case "the same bytes a hundred times":
            names = {f"a{number}": numbers for number in range(100)}
            return {checkpoint.TENSORS: header(names, b"\0" * NUMBERS), checkpoint.STATE: b"{}"}
        case "many tensors without numbers":
            names = {str(number): one("U8", (0,), (0, 0)) for number in range(NUMBERS // 64)}
            return {checkpoint.TENSORS: header(names), checkpoint.STATE: b"{}"}
        case "many lists without elements":
            return {checkpoint.TENSORS: header({}), checkpoint.STATE: b'{"a":[' + b"[]," * (NUMBERS // 3) + b"[]]}"}
        case _:  # as many objects as are accepted, which take the most
            objects = b'{"a":[' + b'{"":0},' * (NUMBERS // sealed.MAX_GROWTH // 7 - 100) + b"{}]}"
            return {checkpoint.TENSORS: header({"a": numbers}, b"\0" * NUMBERS), checkpoint.STATE: objects}


MEMORY_OF_LOAD = """
import re, sys
from pathlib import Path
from sf.errors import CheckpointError
from sf.storage.checkpoint import load

def most_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

before = most_kib()
try:
    found = list(load(Path(sys.argv[1])).tensors)
except CheckpointError as error:
    found = "cannot be read" in str(error)
print(found, most_kib() - before)
"""


@pytest.mark.more
@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("honest", "['a']"),
        ("the same bytes a hundred times", "True"),
        ("many tensors without numbers", "True"),
        ("many lists without elements", "True"),
        ("as many objects as are accepted", "['a']"),
    ],
)
def test_fault_d8_reading_takes_less_memory_than_two_files(tmp_path: Path, kind: str, found: str) -> None:
    path = sealed_folder(tmp_path, large(kind))
    line = [sys.executable, "-c", MEMORY_OF_LOAD, str(path)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=100)
    words = done.stdout.rsplit(maxsplit=1)
    assert words[0] == found
    assert int(words[1]) * 1024 < 2 * NUMBERS


@pytest.mark.parametrize("size", [0, 1])
def test_fault_d8_what_could_not_be_read_again_is_not_saved(tmp_path: Path, size: int) -> None:
    """The text is as long as a reader accepts, or a byte longer."""
    tensors = (save(tmp_path, 1, 1, {}, {}) / checkpoint.TENSORS).read_bytes()
    head = int.from_bytes(tensors[:8], "little")
    data = {"a": "x" * (sealed.SMALL - head - len('{"a":""}') + size)}
    if size:
        with pytest.raises(CheckpointError, match=r"was not saved: .*state\.json cannot be read: .* at most 1048576"):
            save(tmp_path, 2, 2, {}, data)
    else:
        assert load(save(tmp_path, 2, 2, {}, data)).data == data


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
