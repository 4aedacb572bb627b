"""The files of runs, read back, while they go on or afterwards."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sf.errors import ExperimentError
from sf.shared.arena import Array
from sf.storage.compared import NOT_COMPARED, OUTPUT_FLAGS, PATIENCE_FLAGS
from sf.storage.experiment import MARKER, hint_at, listed
from sf.storage.given import read_given
from sf.storage.objects import json_object
from sf.storage.runs import State, state_of
from sf.tools.report.summary import checked, is_histogram, is_number
from sf.tools.report.sweeps import PRUNED, was_pruned

METRICS, REWARD = "metrics.jsonl", "reward/reward"
SET_ASIDE = ".before-"
"""In the name of a directory: an earlier run of that name, which is not looked for."""


@dataclass(frozen=True)
class Curve:
    """A tag over a run, each field [n]."""

    frames: Array
    seconds: Array
    """Time of the run, without the pauses between its starts."""
    values: Array


@dataclass(frozen=True)
class RunFiles:
    """One policy of a run."""

    path: Path
    policy_id: int
    points: Sequence[dict[str, Any]]
    """Lines of metrics.jsonl, in their order."""
    num_damaged: int
    """Lines of metrics.jsonl that could not be read."""
    config: dict[str, dict[str, Any]]
    """Role to field to value; empty without a config.json."""
    summary: dict[str, Any] | None
    """How the run has ended; None if it goes on, or was killed."""
    starts: Sequence[float]
    """Unix times."""
    was_pruned: bool = False
    """By the sweep that it is part of."""
    chosen: frozenset[str] = frozenset()
    """Flags that the run has filled in."""
    state: State = "ended"

    @property
    def name(self) -> str:
        """That of the directory."""
        return self.path.name

    @property
    def flags(self) -> dict[str, Any]:
        """Field to value."""
        return {name: value for fields in self.config.values() for name, value in fields.items()}

    @property
    def compared(self) -> dict[str, Any]:
        """The flags without the seed and what says nothing of the training; None for a value that the run chose."""
        left_out = {*NOT_COMPARED, *OUTPUT_FLAGS, *PATIENCE_FLAGS}
        return {
            name: None if name in self.chosen else value for name, value in self.flags.items() if name not in left_out
        }

    @property
    def of_policy(self) -> dict[str, Any]:
        """The part of the summary about this policy."""
        policies = (self.summary or {}).get("policies", [])
        found: dict[str, Any] = policies[self.policy_id] if self.policy_id < len(policies) else {}
        return found

    @cached_property
    def _seconds(self) -> Array:
        """Time of each point; the time between the end of a start and the next one does not count."""
        seconds, before = [0.0], self.points[0]["time_s"]
        for point in self.points[1:]:
            now = point["time_s"]
            begun = [start for start in self.starts if before < start < now]
            # Files of earlier versions may go back, where the wall clock did.
            seconds.append(seconds[-1] + max(0.0, now - (begun[-1] if begun else before)))
            before = now
        return np.array(seconds)

    def curve(self, tag: str) -> Curve:
        """The points of a tag that are numbers."""
        there = [index for index, point in enumerate(self.points) if is_number(point.get(tag))]
        frames, values = ([self.points[index][name] for index in there] for name in ("frames", tag))
        return Curve(np.array(frames, float), self._seconds[there], np.array(values, float))

    def last(self, tag: str) -> float | None:
        """The newest value of a tag."""
        values = self.curve(tag).values
        return float(values[-1]) if len(values) else None

    def tags(self, prefix: str) -> dict[str, str]:
        """What comes after the prefix, to the whole tag, of all tags that begin with it and ever had a number."""
        there = {tag for point in self.points for tag, value in point.items() if value is not None}
        return {tag.removeprefix(prefix): tag for tag in there if tag.startswith(prefix)}

    def total(self, tag: str) -> Array:
        """A histogram of the whole run [n]: the counts of 0, 1, 2, ... of all points."""
        each = [point[tag] for point in self.points if is_histogram(point.get(tag))]
        counts = np.zeros(max(map(len, each), default=0), np.int64)
        for one in each:
            counts[: len(one)] += one
        return counts

    @property
    def score(self) -> float | None:
        """Mean return of the last episodes; None if none has ended."""
        reward = self.of_policy.get("reward")
        return float(reward) if is_number(reward) else self.last(REWARD)

    @property
    def frames(self) -> int:
        """Learned from so far."""
        return int(self.of_policy.get("frames", self.points[-1]["frames"]))

    @property
    def wall_time_s(self) -> float:
        """Wall time of the only start, or of all points of several starts."""
        whole = (self.summary or {}).get("wall_time_s")
        return float(whole if whole is not None and len(self.starts) < 2 else self._seconds[-1])

    @property
    def fps(self) -> float | None:
        """Over the last start, or the newest value."""
        return (self.summary or {}).get("fps", self.last("perf/_fps"))

    @property
    def end(self) -> str:
        """Why the run ended."""
        if self.was_pruned:
            return PRUNED
        if self.summary is None:
            return "goes on" if self.state == "running" else "killed"
        return str(self.summary.get("exit_reason", "unknown")).partition("\n")[0]  # without the stack of an error

    @property
    def faults(self) -> dict[str, float]:
        """What broke, by name, over all starts, without what never did. Each start counts from 0 again."""
        final = (self.summary or {}).get("faults", {})
        names = self.tags("faults/").keys() | {tag[len("faults/") :] for tag in final if tag.startswith("faults/")}
        counts = {}
        for name in sorted(names.difference(NO_FAULTS)):
            values = np.append(self.curve(f"faults/{name}").values, final.get(f"faults/{name}", []))
            counts[name] = float(values[:-1][np.diff(values) < 0].sum() + values[-1:].sum())
        return {name: count for name, count in counts.items() if count}


NO_FAULTS = "oldest_heartbeat", "checkpoint_age", "discarded_not_learned"
"""Ages, and trajectories that were complete when the run ended."""


def find_runs(names: Sequence[str], train_dir: Path) -> list[Path]:
    """The directories of runs.

    Args:
        names: each a directory, or a name below `train_dir`; a folder stands for all runs in it.
        train_dir: holds the experiments.

    Raises:
        ExperimentError: a name has none.
    """
    found = [run for name in names for run in _runs_of(name, train_dir)]
    return list({run.resolve(): run for run in found}.values())


def _runs_of(name: str, train_dir: Path) -> list[Path]:
    places = [place for place in (Path(name), train_dir / name) if place.is_dir()]
    for place in places:
        if (place / METRICS).is_file():
            return [place]
        places_of = [f"{depth}/{file}" for depth in ("*", "*/*") for file in (METRICS, MARKER)]
        inner = {path.parent for pattern in places_of for path in place.glob(pattern)}
        if inner and not (place / MARKER).is_file():
            return sorted(path for path in inner if SET_ASIDE not in path.name)
    if places:
        raise ExperimentError(f"{places[0].absolute() / METRICS} is missing. It comes with the first curves of a run.")
    there = [path.parent.name for path in train_dir.glob(f"*/{METRICS}")]
    raise ExperimentError(
        f"There is no run {name!r}, neither as a directory nor in {train_dir.absolute()}. "
        f"{hint_at(Path(name).name, there)}"
    )


def read_runs(paths: Sequence[Path], names: Sequence[str], train_dir: Path) -> tuple[list[RunFiles], list[Path]]:
    """The policies of the runs that `find_runs` found for the names, and the runs of folders without curves.

    Raises:
        ExperimentError: a run that was named itself has no curves, or none of a folder has.
    """
    named = {place.resolve() for name in names for place in (Path(name), train_dir / name)}
    runs: list[RunFiles] = []
    without: list[Path] = []
    for path in paths:
        try:
            runs += read_run(path)
        except ExperimentError:
            if path.resolve() in named:
                raise
            without.append(path)
    if not runs:
        raise ExperimentError(
            f"No run has curves yet: {listed([run.name for run in without])}. They come with the first report."
        )
    return runs, without


def read_run(path: Path) -> list[RunFiles]:
    """The policies of a run.

    Raises:
        ExperimentError: there are no curves.
    """
    if not (path / METRICS).is_file():
        raise ExperimentError(f"{path.absolute() / METRICS} is missing. It comes with the first curves of a run.")
    text = (path / METRICS).read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()[: None if text.endswith("\n") else -1]  # the last one may be about to be written
    points = [point for line in lines if (point := point_of(line)) is not None]
    if not points:
        raise ExperimentError(f"{(path / METRICS).absolute()} has no curves yet. They come with the first report.")
    num_damaged, config, summary = len(lines) - len(points), json_object(path / "config.json"), path / "summary.json"
    roles = {role: fields for role, fields in config.items() if isinstance(fields, dict)}
    found = checked(json_object(summary)) if summary.is_file() else None
    chosen, state = read_given(path).chosen, state_of(path, True, found or {})
    shared = num_damaged, roles, found, list(_starts(path)), was_pruned(path.resolve()), chosen, state
    policies = sorted({point["policy_id"] for point in points})
    own = {policy: [point for point in points if point["policy_id"] == policy] for policy in policies}
    return [RunFiles(path.resolve(), policy, own[policy], *shared) for policy in policies]


def point_of(line: str | bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl; None for one that is no point."""
    try:
        point = json.loads(line)
    except (ValueError, RecursionError):
        return None
    needed = "time_s", "policy_id", "frames"
    if not (isinstance(point, dict) and all(is_number(point.get(name)) for name in needed)):
        return None
    return point if isinstance(point["policy_id"], int) and point["policy_id"] >= 0 else None


def _starts(path: Path) -> Iterator[float]:
    """From the lines of the marker, such as ``pid 12 on host, started 2026-11-26T08:21:43``."""
    marker = path / MARKER
    for line in marker.read_text(errors="replace").splitlines() if marker.is_file() else []:
        try:
            yield datetime.datetime.fromisoformat(line.rpartition(" started ")[2]).timestamp()
        except ValueError:
            continue
