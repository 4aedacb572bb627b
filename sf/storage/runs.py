"""The runs of a directory: what each of them is and how it stands, and removing them safely."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sf.errors import ExitCode, ExperimentError
from sf.storage.experiment import MARKER, errors_told
from sf.storage.objects import json_object, parsed_object

State = Literal["running", "ended", "stopped", "failed", "killed", "empty"]
STOPPED = (ExitCode.SIGINT, ExitCode.SIGTERM, ExitCode.REQUEUE)
PLAN = "plan.json"
"""Says of a run of a plan what config.json says of others."""
CHECKPOINTS_OF_PLAN = "checkpoints"
"""Folder of the checkpoints of a plan in the directory of its run."""
RETURN = "reward/reward"
"""Curve of the mean return."""
LAST_BYTES = 200_000
"""End of metrics.jsonl in which the newest return is looked for."""


@dataclass(frozen=True)
class Run:
    """One directory of a run."""

    path: Path
    env: str
    frames: int
    score: float | None
    """Mean of what `--score` names over the last episodes of policy 0; None before the first one has ended."""
    state: State
    """Killed is a run that has left no summary and is not there any more; empty one that has never begun."""
    num_bytes: int
    changed_s: float
    """Unix time of the newest file."""

    @property
    def name(self) -> str:
        """That of the directory."""
        return self.path.name


def runs_in(train_dir: Path) -> list[Run]:
    """All directories of runs directly below, by name; others, and links, are left out."""
    with errors_told(train_dir.absolute()):
        return [
            _read(path) for path in sorted(train_dir.iterdir()) if (path / MARKER).is_file() and not path.is_symlink()
        ]


def directories_of_runs(train_dir: Path) -> list[str]:
    """Names of the directories directly below that are no runs and hold some, such as those of sweeps.

    Links, and directories whose names begin with a dot, are left out.
    """
    with errors_told(train_dir.absolute()):
        holders = {marker.parent.parent for marker in train_dir.glob(f"[!.]*/*/{MARKER}")}
    return sorted(one.name for one in holders if not one.is_symlink() and not (one / MARKER).exists())


def remove(run: Run) -> bool:
    """Deletes the directory of a run; False, and nothing is touched, if it is in use."""
    with _locked(run.path) as is_ours:
        if is_ours:
            shutil.rmtree(run.path)
        return is_ours


def prune(run: Run) -> int | None:
    """Removes all checkpoints but the newest whole one and the best one; returns the bytes, None for a run in use."""
    from sf.storage.checkpoint import MILESTONES
    from sf.storage.leftovers import collect_leftovers
    from sf.storage.removal import remove_all, remove_older

    with _locked(run.path) as is_ours:
        if not is_ours:
            return None
        before = _size(run.path)[0]
        for directory in run.path.glob("checkpoint_p*"):
            remove_older(directory)
            remove_all(directory / MILESTONES)
            collect_leftovers(directory)
        return before - _size(run.path)[0]


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Holds the lock of a run for a while; False where a living run has it."""
    with errors_told(path.absolute()), (path / MARKER).open("rb") as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _read(path: Path) -> Run:
    config, summary = json_object(path / "config.json"), json_object(path / "summary.json")
    run = config.get("run")
    run = run if isinstance(run, dict) else json_object(path / PLAN)
    tag = str(run.get("score", "reward"))
    tag = RETURN if tag == "reward" else tag
    point = _newest_point(path / "metrics.jsonl", tag)
    policies = summary.get("policies")
    policies = policies if isinstance(policies, list) and policies and isinstance(policies[0], dict) else [{}]
    num_bytes, changed_s = _size(path)
    return Run(
        path=path,
        env=str(run.get("env", "?")),
        frames=_number(summary.get("frames")) or _number(point.get("frames")) or 0,
        score=(_number(policies[0].get("reward")) if tag == RETURN else None) or _number(point.get(tag)),
        state=state_of(path, bool(config or point or any(path.glob("checkpoint*/*"))), summary),
        num_bytes=num_bytes,
        changed_s=changed_s,
    )


def state_of(path: Path, has_begun: bool, summary: Mapping[str, Any]) -> State:
    """How a run stands.

    Args:
        path: its directory.
        has_begun: whether it has left anything.
        summary: contents of its summary.json; empty without one.
    """
    with suppress(ExperimentError), _locked(path) as is_ours:  # another user's cannot be opened
        if not is_ours:
            return "running"
    if not summary:
        return "killed" if has_begun else "empty"
    code = summary.get("exit_code", ExitCode.FINISHED)  # that of an early version has none
    return "ended" if code == ExitCode.FINISHED else "stopped" if code in STOPPED else "failed"


def _newest_point(metrics: Path, score: str) -> dict[str, Any]:
    """The newest frames of policy 0 and its newest score, whose curve is named."""
    try:
        with metrics.open("rb") as file:
            file.seek(-min(LAST_BYTES, metrics.stat().st_size), os.SEEK_END)
            lines = file.read().splitlines()
    except OSError:
        return {}
    found: dict[str, Any] = {}
    for line in reversed(lines):
        point = parsed_object(line)
        if point.get("policy_id") == 0:
            found = {name: point[name] for name in ("frames", score) if name in point} | found
        if len(found) == 2:
            break
    return found


def _size(path: Path) -> tuple[int, float]:
    """Bytes of all files, and when the newest of them was written."""
    num_bytes, newest_s = 0, 0.0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:  # a run that goes on has removed it
                continue
            num_bytes += status.st_size
            newest_s = max(newest_s, status.st_mtime)
    return num_bytes, newest_s


def _number(value: Any) -> Any:
    """None for what is no number."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
