"""The directory of one experiment: its lock, the remains of an earlier run, and the places of files.

<train_dir>/<experiment>/
  .sf-experiment      marks the directory as ours; only such directories are ever overwritten. Its lock is held for
                          the life of a run; it has a line for each start
  config.json         the resolved configuration
  given.json          the flags that were given, and those that the run filled in
  checkpoint_p<i>/    checkpoints of policy i
  .summary/<i>/       TensorBoard files of policy i
  metrics.jsonl       the same scalars as lines
  console.log         the lines on the console, of all starts; see sf/console_log.py
  .overwritten/       files of the run that this one overwrites, until it has saved something learned
  summary.json        how the last run ended; not there while one goes on, or if it was killed
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sf.errors import CheckpointError, ExperimentError, LostDirectory
from sf.machine.limits import as_refusal
from sf.storage import sealed
from sf.storage.compared import EarlierStart, changes
from sf.storage.given import read_given
from sf.storage.objects import json_object, write_object

MARKER = ".sf-experiment"
OVERWRITTEN = ".overwritten"
"""Folder of the files that a run overwrites, until it has saved something learned."""
CONSOLE_LOG = "console.log"
MOST_NAMED = 5
"""Runs that an error message lists."""


class Experiment:
    """Holds the lock of an experiment directory until it is closed or the process ends."""

    def __init__(self, train_dir: str, name: str, restart_behavior: Literal["resume", "restart", "overwrite"]):
        """Creates the directory or takes over an existing one.

        Raises:
            ExperimentError: the directory cannot be written, is not an experiment, or another run uses it.
            CheckpointError: another program has taken it away meanwhile.
        """
        self.path = Path(train_dir).absolute() / name
        self.owner: Owner
        self.set_aside = ""
        """Where an earlier run is now, if it is not continued; a sentence."""
        with errors_told(self.path):
            occupied = _expect_ours(self.path)
        self._open_and_lock()
        with errors_told(self.path):
            now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
            if occupied and restart_behavior == "restart":
                old = self._move_to(self.path.with_name(f"{self.path.name}.before-{now}"))
                self.set_aside = f"The earlier run is in {old} now."
            elif occupied and restart_behavior == "overwrite":  # within, which needs no room and no rights elsewhere
                old = self._move_to(self.path / OVERWRITTEN / now)
                self.set_aside = f"The earlier run is in {old} until this one has saved something learned."
        self.begin()

    def begin(self) -> None:
        """Counts one start more, for a run that begins, or begins again from its last checkpoint.

        Raises:
            CheckpointError: the directory is another run's by now.
            ExperimentError: it cannot be written.
        """
        self.owner.expect_unchanged()
        with errors_told(self.path):
            self.num_earlier_starts = len(self._starts())
            """Runs that this one continues; it must not repeat their random numbers."""
            self.owner = replace(self.owner, last_start=self._sign())

    def _open_and_lock(self) -> None:
        with errors_told(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self.path / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._lock, self.path)
        except ExperimentError:
            os.close(self._lock)
            raise
        self.owner = Owner(self.path, _identity(os.fstat(self._lock)))

    def _move_to(self, old: Path) -> Path:
        """Moves the files of the earlier run into a new directory, a run of its own; the lock stays where it is."""
        old.mkdir(mode=0o700, parents=True)
        (old / MARKER).touch(mode=0o600)
        (old / MARKER).write_text("\n".join(self._starts()) + "\n")
        for entry in list(self.path.iterdir()):
            if entry.name != MARKER and entry not in old.parents:
                entry.rename(old / entry.name)
        os.ftruncate(self._lock, 0)
        return old

    def delete_overwritten(self) -> str:
        """Deletes what this run, or an earlier start of it, overwrites; something learned is saved by now.

        Returns:
            A sentence for the user; nothing where there is nothing to delete.
        """
        if not (self.path / OVERWRITTEN).is_dir():
            return ""
        try:
            shutil.rmtree(self.path / OVERWRITTEN)
        except OSError as error:
            return f"Warning: {self.path / OVERWRITTEN} was not deleted: {error.strerror or error}."
        return f"The earlier run in {self.path} was deleted."

    def _sign(self) -> str:
        now = datetime.datetime.now().isoformat(timespec="microseconds")
        text = f"pid {os.getpid()} on {socket.gethostname()}, started {now}\n"
        os.pwrite(self._lock, text.encode(), os.fstat(self._lock).st_size)
        return text.rstrip()

    def _starts(self) -> list[str]:
        return _lines(self._lock)

    def make_checkpoints(self, num_policies: int) -> None:
        """Makes the directories of the checkpoints that are not there, and tries what the first save will need.

        Raises:
            ExperimentError: the file system refuses it.
        """
        with errors_told(self.path):
            sealed.try_writing(self.path)
            for policy_id in range(num_policies):
                self.owner.checkpoints(policy_id).mkdir(mode=0o700, exist_ok=True)

    def write_config(self, config: dict[str, Any], start: EarlierStart) -> list[str]:
        """Writes the resolved configuration of a run that begins, in one step; removes how the earlier one has ended.

        Args:
            config: role to flag to value.
            start: the flags that were given, and those that are not compared.

        Returns:
            What differs from the configuration of the earlier run, if there was one, such as ``gamma=0.9 (was 0.99)``.
        """
        path = self.path / "config.json"
        differing = changes(json_object(path), config, read_given(self.path), start)
        with errors_told(self.path):
            start.given.write(self.path)
            write_object(path, config)
            (self.path / "summary.json").unlink(missing_ok=True)
        return differing

    def close(self) -> None:
        """Gives the lock back."""
        os.close(self._lock)


def expect_free(train_dir: str, name: str) -> None:
    """Refuses early, without a trace, a directory that `Experiment` would refuse later on.

    Raises:
        ExperimentError: the directory is not an experiment, or cannot be used, or another run uses it.
    """
    path = Path(train_dir).absolute() / name
    with errors_told(path):
        occupied = _expect_ours(path)
    if occupied:
        with contextlib.suppress(OSError), (path / MARKER).open("r+b") as marker:
            _lock(marker.fileno(), path)


@contextlib.contextmanager
def errors_told(path: Path) -> Iterator[None]:
    """Turns refusals of the file system into errors for the user.

    Raises:
        ExperimentError: with the reason and what to change.
        ResourceError: it was the kernel, which has no more files or memory.
    """
    try:
        yield
    except OSError as error:
        if told := as_refusal(error):
            raise told from error
        raise ExperimentError(
            f"The directory {path} cannot be used: {error.strerror or error}. Choose another --train_dir, "
            "make room, or change its permissions."
        ) from None


def hint_at(name: str, there: Sequence[str]) -> str:
    """The sentence for a name that no run has: the one that may be meant, or some of those that are there."""
    if near := difflib.get_close_matches(name, there, n=1):
        return f"Did you mean {near[0]}?"
    return f"Found: {listed(sorted(there))}." if there else "Train one with sf-train, or give its --train_dir."


def listed(names: Sequence[str]) -> str:
    """The first few names of runs."""
    return f"{', '.join(names[:MOST_NAMED])}{', and others' if len(names) > MOST_NAMED else ''}"


def _expect_ours(path: Path) -> bool:
    """Whether something is there already; then it has to be an experiment."""
    occupied = path.exists() and any(path.iterdir()) if path.is_dir() else path.exists()
    if occupied and not (path / MARKER).is_file():
        raise ExperimentError(
            f"{path} exists and is not an experiment of sf (it has no {MARKER}). Choose another "
            "--experiment or --train_dir."
        )
    return occupied


def _lock(descriptor: int, path: Path) -> None:
    """Locks the marker of an experiment until the descriptor is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = (_lines(descriptor) or [""])[-1]
        raise ExperimentError(
            f"The experiment {path} is in use by a living run: {holder or 'unknown holder'}. Wait for it, "
            "stop it, or choose another --experiment."
        ) from None
    except OSError as error:
        raise ExperimentError(
            f"The experiment {path} cannot be locked: {error.strerror or error}. Choose a --train_dir on a file system "
            "that can."
        ) from None


def _lines(descriptor: int) -> list[str]:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace").splitlines()


@dataclass(frozen=True)
class Owner:
    """The run that has locked a directory. Before a save it tells whether another run has the directory by then."""

    path: Path
    """Directory of the experiment."""
    marker: tuple[int, int]
    """The identity of its marker for the kernel, under any name."""
    last_start: str = ""
    """Its last line, which is that of this start; "" before it is written."""

    def checkpoints(self, policy_id: int) -> Path:
        """The directory of the checkpoints of a policy."""
        return self.path / f"checkpoint_p{policy_id}"

    def expect_unchanged(self) -> None:
        """Refuses to write into a directory that another program has removed, or made anew.

        Raises:
            LostDirectory: with what happened and what to do.
            CheckpointError: the directory cannot be looked at, as where a file system of the network is away.
        """
        last = ""
        try:
            is_there = _identity((self.path / MARKER).stat()) == self.marker
            last = ((self.path / MARKER).read_text(errors="replace").splitlines() or ["another program"])[-1]
        except (FileNotFoundError, NotADirectoryError):
            is_there = False
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be looked at: {error}") from error
        if not is_there:
            raise LostDirectory(
                f"{self.path} was removed while this run used it, or is another run's now, so nothing is saved there. "
                "Start the run again, under another name if this one is taken."
            )
        if self.last_start not in ("", last):  # locks of this file system have no effect, as between some hosts
            raise LostDirectory(
                f"{self.path} is used by another run as well ({last}): its file system locks "
                "nothing for other machines. So nothing is saved there. Start one of the two runs again under another "
                "name."
            )


def _identity(marker: os.stat_result) -> tuple[int, int]:
    return marker.st_dev, marker.st_ino
