"""Counters that the processes keep for the monitor: fixed-layout records in the arena, one writer each.

A record is written as a whole under a sequence number. So a reader never sees the minimum of one step beside the
maximum of another. No writer ever waits for a reader: a late reader sees the newest values and the newest episodes.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable

from sf.shared.arena import Arena, Field
from sf.shared.order import observe, publish, recheck, withdraw
from sf.shared.progress import Progress

ASKED = "asked"
"""Counter of each record: seconds for which the process has computed, or was ready to and had no core. It is 0 until
the process has ended in order."""
ROLLOUT_COUNTERS = ("env_steps", "episodes", "dropped", "clipped", "step", "wait", "write", ASKED)
INFERENCE_COUNTERS = (
    "samples",
    "requests",
    "forwards",
    "refreshes",
    "refresh_seconds",
    "weights_version",
    "wait",
    "gather",
    "forward",
    "scatter",
    "weights",
    "gpu_mem",
    "gpu_cache",
    ASKED,
)
LEARNER_COUNTERS = (
    "version", "env_steps", "first_env_steps", "iterations", "lag_min", "lag_avg", "lag_max", "wait", "batch", "update",
    "publish", "save", "gpu_mem", "gpu_cache", "skipped_steps", "steps", "lag_sum", "lag_acting", "lag_queued",
    "lag_most", "left_out", "cut_short", ASKED,
)  # fmt: skip

EVALUATION_COUNTERS = ("evaluations", "play", "wait", ASKED)

ROLLOUT_ACTIVITIES = ("step", "wait", "write")
INFERENCE_ACTIVITIES = ("forward", "wait", "gather", "scatter", "weights")
EVALUATION_ACTIVITIES = ("play", "wait")
LEARNER_ACTIVITIES = ("update", "wait", "batch", "publish", "save")

LAG_COUNTS = "lag/counts"
"""Name of the shared array [learners of a policy, policies, LAGS_COUNTED + 1]. It holds how many transitions had each
lag in an optimizer step; the last column is for larger ones."""
LAGS_COUNTED = 1024
BEGAN_S = "run_state/began_s"
"""Name of the shared word [1] with the moment when all roles were ready, by the monotonic clock; nan until then."""
FIRST_STEP_S = "records/first_step_s"
"""Name of the shared word [1] with the moment when the first step of the run began, by `perf_counter`; nan until then.
Before it no time is accounted for: environments are made, and networks are compiled."""
METRICS, METRIC_NAMES = "records/metrics", "records/metric_names"
"""Numbers of the environments' own of the last episodes of each worker, behind them how many columns there were at the
time, and the names of the columns."""
MOST_METRICS, NAME_BYTES = 32, 48
METRICS_KEPT = 256
"""Episodes per worker with metrics, of which the newer half is read: where more end between two polls, some of them."""
NUM_COLUMNS = 5
"""Policy, return, length, true objective and row."""
EPISODES_KEPT = 4096
"""Episodes per worker that may end between two polls before the oldest of them are only counted."""
REPORTED_COPIES = 128
"""Copies of a simulator in tensors whose episodes are reported. Thousands of copies end more than anyone can read."""


READ_ATTEMPTS = 1000
"""A write takes about a microsecond; a writer that has not finished after so many looks never will."""


def record_fields(
    num_workers: int, num_inference: int, num_policies: int, learners_per_policy: int = 1
) -> dict[str, Field]:
    """The shared arrays behind all records."""
    kinds = {"rollout": (num_workers, ROLLOUT_COUNTERS), "inference": (num_inference, INFERENCE_COUNTERS)}
    kinds |= {"learner": (learners_per_policy * num_policies, LEARNER_COUNTERS), "eval": (1, EVALUATION_COUNTERS)}
    fields = {}
    for kind, (count, names) in kinds.items():
        fields[f"records/{kind}"] = Field((count, len(names)), "float64")
        fields[f"records/{kind}/sequence"] = Field((count,), "int64")
        fields[f"records/{kind}/progress"] = Field((count,), "int64")
    return fields | {
        FIRST_STEP_S: Field((1,), "float64", math.nan),
        LAG_COUNTS: Field((learners_per_policy, num_policies, LAGS_COUNTED + 1), "int64"),
        "episodes": Field((num_workers, EPISODES_KEPT, NUM_COLUMNS), "float64", float("nan")),
        "episodes/count": Field((num_workers,), "int64"),
        METRICS: Field((num_workers, METRICS_KEPT, MOST_METRICS + 1), "float64"),
        METRIC_NAMES: Field((num_workers, MOST_METRICS, NAME_BYTES), "uint8"),
    }


def mark_lag_unknown(arena: Arena) -> None:
    """Shows a lag of -1 until a learner has made its first optimizer step."""
    for name in ("lag_min", "lag_avg", "lag_max"):
        arena["records/learner"][:, LEARNER_COUNTERS.index(name)] = -1.0


class Record:
    """The counters of one process. The writer changes `local` and publishes; a reader takes a consistent copy.

    `lap(name)` adds the time since the previous lap to the counter of that name, so that all time since the first step
    of the run is accounted for. The successor of a process that was killed counts on from what it had published.
    """

    def __init__(self, arena: Arena, kind: str, index: int, names: tuple[str, ...]):
        self.names = names
        self.column = {name: column for column, name in enumerate(names)}
        # Views of plain memory take and give one number, or all of them, at a fraction of the price of an array.
        self._shared = arena[f"records/{kind}"][index].data
        self._sequence = arena[f"records/{kind}/sequence"][index : index + 1].data
        self.progress = Progress(arena[f"records/{kind}/progress"], index)
        """The activity of the process."""
        self.local: array[float] = array("d", self._shared)
        self._last_good = self._shared.tolist()
        self._last_lap = time.perf_counter()
        self._first_step_s: memoryview[float] = arena[FIRST_STEP_S].data  # type: ignore[assignment]  # of float64
        self.lap: Callable[[str], None] = self._lap_before
        """Ends a stretch of time, whose activity has this name."""

    def __setitem__(self, name: str, value: float) -> None:
        self.local[self.column[name]] = value

    def __getitem__(self, name: str) -> float:
        return self.local[self.column[name]]

    def begin(self) -> None:
        """What is built was built: no time before this moment is accounted for."""
        self._last_lap = time.perf_counter()

    def begin_steps(self) -> None:
        """Says for all processes that a first step begins, if none has said so."""
        if math.isnan(self._first_step_s[0]):
            self._first_step_s[0] = time.perf_counter()

    def _lap_before(self, name: str) -> None:
        """Adds nothing for the time before the first step of the run."""
        first_step_s = self._first_step_s[0]
        if math.isnan(first_step_s):
            self.begin()
            return
        self._last_lap = max(self._last_lap, first_step_s)
        self.lap = self._lap
        self.lap(name)

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self.local[self.column[name]] += now - self._last_lap
        self._last_lap = now

    def publish(self) -> None:
        odd = self._sequence[0] | 1  # it is odd already if a predecessor was killed between these lines
        withdraw(self._sequence, 0, odd)
        self._shared[:] = self.local
        publish(self._sequence, 0, odd + 1)

    def read(self) -> dict[str, float]:
        """A consistent copy; the last good one if the writer was killed while it wrote."""
        for _ in range(READ_ATTEMPTS):
            before = observe(self._sequence, 0)
            values = self._shared.tolist()
            if before % 2 == 0 and recheck(self._sequence, 0) == before:
                self._last_good = values
                break
        return dict(zip(self.names, self._last_good, strict=True))


def rollout_record(arena: Arena, worker: int) -> Record:
    return Record(arena, "rollout", worker, ROLLOUT_COUNTERS)


def inference_record(arena: Arena, index: int) -> Record:
    return Record(arena, "inference", index, INFERENCE_COUNTERS)


def evaluation_record(arena: Arena) -> Record:
    return Record(arena, "eval", 0, EVALUATION_COUNTERS)


def learner_record(arena: Arena, index: int) -> Record:
    """The first learner of each policy, by policy, then the second one of each."""
    return Record(arena, "learner", index, LEARNER_COUNTERS)


def begin_learner(record: Record, frames: int, version: int) -> None:
    """Shows where a learner begins, before its first step."""
    record["first_env_steps"] = record["env_steps"] = frames
    record["version"] = version
    record["lag_min"] = record["lag_avg"] = record["lag_max"] = -1.0
    record.publish()
