"""Scalars on disk, twice: TensorBoard event files, one directory per policy, and lines of JSON.

    <experiment>/.summary/<policy id>/events.out.tfevents...
    <experiment>/metrics.jsonl      {"time_s": unix time, "policy_id": 0, "frames": 1024, "reward/reward": 21.5, ...}

`time_s` tells the points of a run apart and measures it, so it never goes back: see `PointClock`.

Histograms are lists in metrics.jsonl: how often each of the whole numbers 0, 1, 2, ... occurred since the last point.

A disk that fails costs points of the curves, never the run. The next point begins new files, and a line that was
written in part is taken back.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from sf.monitor.event_file import NONE, EventFile, Facts
from sf.shared.arena import Array
from sf.storage.lines import METRICS as METRICS
from sf.storage.lines import keep_lines


class ScalarLog:
    """Writes the scalars of all policies. Files appear with the first scalars."""

    def __init__(self, experiment_dir: Path, warn: Callable[[str], None], facts: Facts | None = None) -> None:
        self._directory = experiment_dir
        self._warn, self._facts = warn, facts or Facts()
        self._events: dict[int, EventFile] = {}
        self._lines: IO[str] | None = None
        self._first_frames: dict[int, int] = {}
        self._newest_frames: dict[int, int] = {}
        self._clock = PointClock()
        self._whole = 0
        """Bytes of metrics.jsonl with whole lines."""
        self._num_lost = 0
        """Points that could not be written."""

    def begin(self, frames: Sequence[int]) -> None:
        """Says where the curves of each policy go on; points that a killed run wrote beyond that are forgotten."""
        self._first_frames = dict(enumerate(frames))
        path = self._directory / METRICS
        try:
            self._clock.go_on_after(forget_points(path, self._first_frames))
        except OSError as error:
            self._warn(f"Warning: {path} may hold points of a run that was killed twice: {error}")

    def write(
        self, policy_id: int, frames: int, scalars: Mapping[str, float], histograms: Mapping[str, Array] = NONE
    ) -> None:
        """Adds one point to each curve. The x axis never goes back, even where a report arrives late.

        Args:
            policy_id: of whose curves.
            frames: place on the x axis.
            scalars: tag to value.
            histograms: tag to counts [n] of the whole numbers 0 to n - 1; those that have counted nothing are left out.
        """
        if not scalars:
            return
        frames = max(frames, self._newest_frames.get(policy_id, 0))
        self._newest_frames[policy_id] = frames
        try:
            time_s = self._clock.next_s()
            self._open(policy_id, frames, time_s)
            counted = {tag: counts for tag, counts in histograms.items() if counts.any()}
            self._events[policy_id].write(time_s, frames, scalars, counted)
            self._write_line({"time_s": time_s, "policy_id": policy_id, "frames": frames}, scalars, counted)
        except OSError as error:
            self._leave_files()
            self._num_lost += 1
            if self._num_lost.bit_count() == 1:  # ever more rarely
                self._warn(
                    f"Warning: a point of the curves was not written to {self._directory}: {error} (point "
                    f"{self._num_lost} of this kind). The next one begins new files. Training goes on."
                )

    def close(self) -> None:
        """Closes all files."""
        try:
            for events in self._events.values():
                events.close()
            if self._lines is not None:
                self._lines.close()
        except OSError as error:
            self._warn(f"Warning: the last curves in {self._directory} may be lost: {error}")

    def _leave_files(self) -> None:
        """After an error. What is buffered would only be refused again."""
        for events in self._events.values():
            events.leave()
        if self._lines is not None:
            with contextlib.suppress(OSError):
                self._lines.close()
            with contextlib.suppress(OSError):
                os.truncate(self._directory / METRICS, self._whole)
        self._events, self._lines = {}, None
        self._first_frames |= self._newest_frames  # earlier points stay

    def _open(self, policy_id: int, frames: int, time_s: float) -> None:
        if self._lines is None:
            self._lines = (self._directory / METRICS).open("a", encoding="utf-8")
            self._whole = os.fstat(self._lines.fileno()).st_size
        if policy_id not in self._events:
            first = self._first_frames.get(policy_id, frames - 1) + 1  # the last point of a run that ended well stays
            self._events[policy_id] = EventFile(
                self._directory / ".summary" / str(policy_id), time_s, first, self._facts
            )

    def _write_line(
        self, head: Mapping[str, float], scalars: Mapping[str, float], histograms: Mapping[str, Array]
    ) -> None:
        assert self._lines is not None
        # JSON has no NaN and no infinity.
        values: dict[str, Any] = {tag: value if math.isfinite(value) else None for tag, value in scalars.items()}
        values |= {tag: np.trim_zeros(counts, "b").tolist() for tag, counts in histograms.items()}
        self._lines.write(json.dumps({**head, **values}) + "\n")
        self._lines.flush()
        self._whole = os.fstat(self._lines.fileno()).st_size


class PointClock:
    """Unix time as it was when a run began, and from then on by the monotonic clock.

    The wall clock may be set back, and another node may have another one. The points of a run that goes on come after
    all that it has had, in milliseconds, and no two of them have the same time.
    """

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()
        self._last_s = -math.inf

    def go_on_after(self, time_s: float) -> None:
        """Puts the next points behind this time."""
        self._last_s = max(self._last_s, time_s)
        self._offset_s = max(self._offset_s, time_s - time.monotonic())

    def next_s(self) -> float:
        """Time of a point that is made now."""
        now_s = round(time.monotonic() + self._offset_s, 3)
        self._last_s = now_s if now_s > self._last_s else round(self._last_s + 0.001, 3)
        return self._last_s


def forget_points(path: Path, first_frames: Mapping[int, int]) -> float:
    """Removes lines of policies beyond the frames that they go on from, and one that was never finished.

    Returns:
        The time of the newest point before, removed ones included; minus infinity if there was none.
    """
    kept, removed = keep_lines(path, lambda line: _is_before(line, first_frames))
    return max(map(_time_of, kept + removed), default=-math.inf)


def _time_of(line: str) -> float:
    """Time of a point; minus infinity for a line that is none."""
    try:
        time_s = json.loads(line)["time_s"]
        return float(time_s) if math.isfinite(time_s) else -math.inf
    except (ValueError, KeyError, TypeError):
        return -math.inf


def _is_before(line: str, first_frames: Mapping[int, int]) -> bool:
    try:
        point = json.loads(line)
        return _time_of(line) > -math.inf and bool(point["frames"] <= first_frames.get(point["policy_id"], math.inf))
    except (ValueError, KeyError, TypeError):
        return False
