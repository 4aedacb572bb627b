"""TensorBoard event files, and what its first screen shows.

TensorBoard sorts groups of curves by name, capital letters first. So the group `Overview` repeats the three curves that
are looked at first. A counter of faults has a curve as soon as there was such a fault.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sf.shared.arena import Array

NONE: Mapping[str, Array] = {}
OVERVIEW = {
    "reward/reward": "Overview/reward",
    "train/version_diff_avg": "Overview/policy_lag",
    "perf/_fps": "Overview/fps",
}
FAULTS = "faults/"
ESTIMATES = {"train/old_approx_kl", "train/half_mean_squared_log_ratio", "train/approx_kl"}
"""Further estimates of `train/kl_divergence`."""
LAYOUT = {
    "Training": {
        "return: min, mean, max": ["Margin", ["reward/reward", "reward/reward_min", "reward/reward_max"]],
        "policy lag: min, mean, max": [
            "Margin", ["train/version_diff_avg", "train/version_diff_min", "train/version_diff_max"],
        ],
        "policy lag by source": ["Multiline", ["lag/acting", "lag/queued", "lag/epochs"]],
    }
}  # fmt: skip
"""Layout of the tab Custom Scalars: category to title to kind and tags; a margin has middle, lower and upper curve."""


@dataclass(frozen=True)
class Facts:
    """What a run is, for the tabs Text and HParams."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """Name to text."""
    flags: Mapping[str, str | float | bool] = field(default_factory=dict)


_serial_numbers = itertools.count()
"""Serial numbers of the event files of this process."""


class EventFile:
    """One TensorBoard event file, written and flushed at once.

    It uses tensorboardX's record writer below its SummaryWriter, which would add a thread, a multiprocessing queue with
    semaphores in /dev/shm, and a summary per scalar.
    """

    def __init__(self, directory: Path, time_s: float, first_frames: int, facts: Facts) -> None:
        with torch_hidden():
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2, summary_pb2
            from tensorboardX.summary import custom_scalars, hparams, text
        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        self._histogram: Any = summary_pb2.HistogramProto
        directory.mkdir(parents=True, exist_ok=True)
        # The name holds seconds and host; the rest keeps quick starts apart, also those of one program, in their order.
        suffix = f".{os.getpid()}.{next(_serial_numbers):06d}"
        self._writer: Any = EventsWriter(str(directory / "events"), filename_suffix=suffix)
        self._path = Path(self._writer._file_name)
        # TensorBoard forgets points of an earlier run from here on, which a resumed run makes again.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.write_event(self._event(wall_time=time_s, step=first_frames, session_log=start))
        self._writer.write_event(self._event(wall_time=time_s, step=first_frames, summary=custom_scalars(LAYOUT)))
        told = [text(f"run/{name}", f"    {value}") for name, value in facts.texts.items()]  # a paragraph of code
        # Flags alone, without a list of them: TensorBoard makes the table of those that it finds in any run.
        for summary in (*told, *hparams(facts.flags, {})[1:2]):
            self._writer.write_event(self._event(wall_time=time_s, step=first_frames, summary=summary))
        self._faults: set[str] = set()
        """Those that have happened."""

    def write(
        self, time_s: float, frames: int, scalars: Mapping[str, float], histograms: Mapping[str, Array] = NONE
    ) -> None:
        """Adds one point to each curve that is shown; see `ScalarLog.write`."""
        self._faults.update(tag for tag, value in scalars.items() if value and tag.startswith(FAULTS))
        shown = {tag: value for tag, value in scalars.items() if self._is_shown(tag)}
        shown |= {OVERVIEW[tag]: value for tag, value in scalars.items() if tag in OVERVIEW}
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in shown.items()]
        values += [self._summary.Value(tag=tag, histo=self._bars(counts)) for tag, counts in histograms.items()]
        self._writer.write_event(
            self._event(wall_time=time_s, step=frames, summary=self._summary(value=values)),
        )
        self._writer.flush()

    def _is_shown(self, tag: str) -> bool:
        return tag in self._faults if tag.startswith(FAULTS) else tag not in ESTIMATES

    def _bars(self, counts: Array) -> Any:
        """Each number that occurs as a bar of its own; TensorBoard wants the right end of a bar."""
        numbers = np.arange(counts.nonzero()[0][-1] + 1)
        counts = counts[: len(numbers)]
        return self._histogram(
            min=float(counts.nonzero()[0][0]), max=float(numbers[-1]), num=float(counts.sum()),
            sum=float(counts @ numbers), sum_squares=float(counts @ numbers**2),
            bucket_limit=(numbers + 0.5).tolist(), bucket=counts.astype(float).tolist(),
        )  # fmt: skip

    def close(self) -> None:
        """Flushes and closes the file."""
        self._writer.close()

    def leave(self) -> None:
        """Closes the file after an error, and removes it if nothing of it was written."""
        with suppress(OSError):
            self.close()
        with suppress(OSError):
            self._writer._py_recordio_writer.close()
        with suppress(OSError):
            if not self._path.stat().st_size:
                self._path.unlink()


@contextmanager
def torch_hidden() -> Iterator[None]:
    """Keeps tensorboardX from importing torch, which it does only to recognise tensors: 2 s and 190 MB."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        yield
    finally:
        del sys.modules["torch"]
