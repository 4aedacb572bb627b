"""Saves that crash or fail at any call: the old checkpoint or the new one is there, and the user is told which."""

from __future__ import annotations

import errno
import io
import itertools
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sf.errors import CheckpointError, ExitCode
from sf.storage.checkpoint import load, save
from sf.storage.names import list_checkpoints
from tests.helpers.checkpoints import save_some, snapshot, tensors_of, version_of


def fail_at(monkeypatch: pytest.MonkeyPatch, position: int, error: OSError) -> list[str]:
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


def count_calls(directory: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        calls = fail_at(patch, -1, OSError())
        save_some(directory, 2)
    return len(calls)


AUDITED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir", "ctypes.dlsym"}
"""What the interpreter tells of before it does it, whichever library asks; a name of the C library is looked up right
before it is called."""


def die_at(position: int, told: int) -> None:
    """This process is killed before its call of this number, within a write after half of it; each is told."""
    calls = itertools.count()

    def call(name: str) -> None:
        os.write(told, f"{name}\n".encode())
        if next(calls) == position:
            os.kill(os.getpid(), signal.SIGKILL)

    class Halved(io.FileIO):
        def write(self, content: Any) -> int:
            half = super().write(content[: len(content) // 2])
            call("write")
            return half + super().write(content[half:])

    def fsync(descriptor: int, original: Callable[[int], None] = os.fsync) -> None:
        call("fsync")
        original(descriptor)

    os.fsync, os.fdopen = fsync, Halved  # type: ignore[assignment]  # this process does nothing else any more
    sys.addaudithook(lambda event, _: call(event) if event in AUDITED else None)


def save_and_die(position: int, directory: Path, **options: Any) -> list[str]:
    """Saves version 2 in a fork that is killed at this call, at none if it has fewer; returns its calls."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads; the fork waits for none of them
        child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # another thread may have held a lock at the fork
            die_at(position, writer)
            save(directory, 2, 200, tensors_of(2), {"life": 2}, **options)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        calls = told.read().split()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (-signal.SIGKILL if position < len(calls) else 0), calls
    return calls


@pytest.mark.more
@pytest.mark.parametrize(
    ("there", "options", "last"),
    [
        (1, {"keep": 1}, "os.rmdir"),
        (1, {"keep": None}, "fsync"),
        (2, {"keep": None, "replace": True}, "fsync"),
    ],
    ids=["removing", "keeping", "replacing"],
)
def test_fault_d1_crash_anywhere_in_a_save_leaves_the_old_or_the_new_one(
    tmp_path: Path, there: int, options: dict[str, Any], last: str
) -> None:
    """What is there is version 1, or version 2 of an earlier life."""
    found = []
    for position in itertools.count():
        directory = tmp_path / str(position)
        save(directory, there, 100 * there, tensors_of(there), {"life": 1})
        calls = save_and_die(position, directory, **options)
        *_, newest = [load(path) for path in list_checkpoints(directory)]  # whole, every one
        assert newest.tensors["step"].item() == newest.version
        assert newest.version == (2 if newest.data["life"] == 2 else there)
        found.append(newest.data["life"])
        save_some(directory, 3, keep=2)
        assert version_of(directory) == 3
        assert not [path for path in directory.iterdir() if path.name.startswith((".", "damaged"))], "collected"
        if position == len(calls):
            break  # nobody died
    assert {"open", "os.mkdir", "write", "fsync", "os.rename" if there == 1 else "ctypes.dlsym"} <= set(calls)
    assert calls[-1] == last
    assert found == sorted(found)
    assert set(found) == {1, 2}


def test_fault_d2_error_anywhere_in_a_save_keeps_the_old_one_and_says_which_case(tmp_path: Path) -> None:
    save_some(tmp_path / "count", 1)
    for position in range(count_calls(tmp_path / "count")):
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


@pytest.mark.more
def test_fault_d2_file_size_limit(tmp_path: Path) -> None:
    """A real limit of the kernel in a process of its own, because it cannot be raised again."""
    save_some(tmp_path, 1)
    code = f"""
import resource, signal
from pathlib import Path
import torch
from sf.errors import CheckpointError
from sf.storage.checkpoint import save
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
