"""Saves that crash or fail at any call: the old checkpoint or the new one is there, and the user is told which."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sf.errors import CheckpointError, ExitCode
from tests.checkpoints import save_some, snapshot, version_of


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
