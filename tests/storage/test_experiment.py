"""The directory of an experiment: what is refused, and what is never touched."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from sf.errors import CheckpointError, ExperimentError
from sf.storage.experiment import MARKER, OVERWRITTEN, Experiment, expect_free
from tests.helpers.commands import CARTPOLE, run


def test_fault_d11_file_system_that_cannot_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ExperimentError, match=r"cannot be locked: No locks available\. Choose a --train_dir on"):
        Experiment(str(tmp_path), "x", "resume")


def test_fault_d11_file_system_that_locks_only_what_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS, where the client makes a lock of another kind of it."""
    flock = fcntl.flock

    def as_nfs_does(descriptor: int, operation: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", as_nfs_does)
    Experiment(str(tmp_path), "x", "resume").close()
    expect_free(str(tmp_path), "x")
    Experiment(str(tmp_path), "x", "resume").close()


@pytest.mark.parametrize("behavior", ["resume", "restart", "overwrite"])
def test_fault_g3_what_bears_no_marker_is_nobodys_to_overwrite(
    tmp_path: Path, behavior: Literal["resume", "restart", "overwrite"]
) -> None:
    """A directory of the user, which has an unlucky name."""
    (tmp_path / "x" / "thesis").mkdir(parents=True)
    (notes := tmp_path / "x" / "thesis" / "notes.txt").write_text("years of work")
    with pytest.raises(ExperimentError, match=rf"is not an experiment of sf \(it has no {MARKER}\)"):
        expect_free(str(tmp_path), "x")
    with pytest.raises(ExperimentError, match="is not an experiment of sf"):
        Experiment(str(tmp_path), "x", behavior)
    refused = run(tmp_path, *CARTPOLE, f"--train_dir={tmp_path}", "--experiment=x", f"--restart_behavior={behavior}")
    assert refused.code == 4
    assert notes.read_text() == "years of work"
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["thesis"]


def test_fault_g3_restart_moves_all_but_the_lock_and_overwrite_deletes_it(tmp_path: Path) -> None:
    for behavior in ("restart", "overwrite"):
        Experiment(str(tmp_path), "x", "resume").close()
        (tmp_path / "x" / "config.json").write_text(behavior)
        experiment = Experiment(str(tmp_path), "x", behavior)
        place = "x.before-*" if behavior == "restart" else f"x/{OVERWRITTEN}/*"
        (aside,) = tmp_path.glob(place)
        assert (aside / "config.json").read_text() == behavior, "nothing is deleted before the new run has something"
        assert (aside / MARKER).is_file(), "it is a run, wherever it is moved"
        told = experiment.delete_overwritten()
        assert told == (f"The earlier run in {tmp_path / 'x'} was deleted." if behavior == "overwrite" else "")
        assert experiment.delete_overwritten() == ""
        experiment.close()
        assert [path.name for path in (tmp_path / "x").iterdir()] == [MARKER]
    (kept,) = tmp_path.glob("x.before-*")
    assert (kept / "config.json").read_text() == "restart"
    for directory in (kept, tmp_path / "x"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE((directory / MARKER).stat().st_mode) == 0o600


def test_fault_g3_what_starts_without_a_checkpoint_have_set_aside_is_deleted_by_the_one_that_saves(
    tmp_path: Path,
) -> None:
    """A resumed start too; the files of each earlier run are there until then."""
    Experiment(str(tmp_path), "x", "resume").close()
    for content in ("first", "of a run that saved nothing"):
        (tmp_path / "x" / "config.json").write_text(content)
        Experiment(str(tmp_path), "x", "overwrite").close()
    found = {path.read_text() for path in tmp_path.glob(f"x/{OVERWRITTEN}/*/config.json")}
    assert found == {"first", "of a run that saved nothing"}
    experiment = Experiment(str(tmp_path), "x", "resume")
    assert experiment.delete_overwritten() == f"The earlier run in {tmp_path / 'x'} was deleted."
    assert [path.name for path in (tmp_path / "x").iterdir()] == [MARKER]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    experiment.close()


def test_fault_d3_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = run(tmp_path, *CARTPOLE, "--train_dir=file")
    assert refused.code == 4
    assert "file/default_experiment cannot be used: File exists. Choose another --train_dir" in refused.err


def test_fault_d3_name_that_the_file_system_refuses(tmp_path: Path) -> None:
    refused = run(tmp_path, *CARTPOLE, f"--train_dir={'x' * 300}")
    assert refused.code == 4
    assert "cannot be used: File name too long. Choose another --train_dir" in refused.err
    assert "Traceback" not in refused.err


@pytest.mark.parametrize("call", ["is_dir", "exists", "iterdir", "is_file"])
def test_fault_d3_directory_that_may_not_be_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whichever of the calls is the first that needs the permission."""
    Experiment(str(tmp_path), "x", "resume").close()

    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, call, refuse)
    if call == "exists":
        monkeypatch.setattr(Path, "is_dir", lambda _: False)
    with pytest.raises(ExperimentError, match=r"x cannot be used: Permission denied\. .*change its permissions"):
        expect_free(str(tmp_path), "x")
    with pytest.raises(ExperimentError, match="cannot be used: Permission denied"):
        Experiment(str(tmp_path), "x", "resume")


def test_fault_d3_start_that_cannot_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a learner which begins again while the disk is full."""
    experiment = Experiment(str(tmp_path), "x", "resume")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        with pytest.raises(ExperimentError, match="cannot be used: No space left on device"):
            experiment.begin()
    experiment.begin()
    experiment.close()


@pytest.mark.parametrize("module", ["evaluate", "enjoy", "export"])
def test_the_directory_of_another_user_is_refused_in_one_sentence(module: str, tmp_path: Path) -> None:
    """The superuser gives up the right to read everything."""
    path = tmp_path / "train_dir" / "theirs"
    (path / "checkpoint_p0").mkdir(parents=True)
    limited = []
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        limited = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    path.chmod(0o700 if limited else 0)
    film = ["--output=a.gif"] if module == "enjoy" else []
    arguments = [sys.executable, "-m", f"sf.cli.{module}", "--experiment=theirs", *film]
    finished = subprocess.run([*limited, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    path.chmod(0o700)
    assert finished.returncode == 4
    assert finished.stderr == (
        f"ExperimentError: The directory {path} cannot be used: Permission denied. Choose another --train_dir, make "
        "room, or change its permissions.\n"
    )


def test_fault_d3_two_runs_where_locks_exclude_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As between two machines with local locks: the run that began first is told, and saves nothing over the other."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    first = Experiment(str(tmp_path), "shared", "resume")
    first.begin()  # again, as after a lost learner
    first.owner.expect_unchanged()
    second = Experiment(str(tmp_path), "shared", "resume")
    second.owner.expect_unchanged()
    with pytest.raises(
        CheckpointError, match=rf"used by another run as well \(pid {os.getpid()} on .*Start one of the"
    ):
        first.owner.expect_unchanged()
    with pytest.raises(CheckpointError, match="used by another run as well"):
        first.begin()
    third = Experiment(str(tmp_path), "shared", "overwrite")
    third.owner.expect_unchanged()
    with pytest.raises(CheckpointError, match="used by another run as well"):
        second.owner.expect_unchanged()
    for experiment in (first, second, third):
        experiment.close()
