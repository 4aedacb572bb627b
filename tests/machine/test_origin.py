"""Where a run comes from: its command line, and the commit of the working directory."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sf.machine.origin import Origin, origin_of


def git(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    line = ["git", "-C", str(directory), *identity, *words]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    assert origin_of(tmp_path).commit is None, "no commit yet"
    (tmp_path / "reward.py").write_text("SCALE = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    return tmp_path


def test_commit_of_a_directory_and_whether_its_files_differ(committed: Path) -> None:
    (committed / "train_dir").mkdir()
    (committed / "train_dir" / "console.log").touch()
    found = origin_of(committed / "train_dir")
    assert found == Origin(shlex.join(sys.orig_argv), git(committed, "rev-parse", "HEAD"), has_changes=False)
    assert found.texts()["commit"] == f"{found.commit}, without changes"
    (committed / "reward.py").write_text("SCALE = 2\n")
    assert origin_of(committed).has_changes is True
    assert origin_of(committed).texts()["commit"] == f"{found.commit}, with changes"


def test_a_directory_without_commits_has_none(tmp_path: Path) -> None:
    found = origin_of(tmp_path)
    assert (found.commit, found.has_changes) == (None, None)
    assert found.texts() == {"command": shlex.join(sys.orig_argv)}


def test_without_git_there_is_no_commit(committed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(committed))
    assert origin_of(committed).commit is None


def test_a_git_that_does_not_answer_costs_seconds_and_not_the_run(
    committed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sf.machine.origin.GIT_S", 0.05)
    (committed / "bin").mkdir()
    (committed / "bin" / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (committed / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{committed / 'bin'}:/usr/bin:/bin")
    assert origin_of(committed).commit is None
