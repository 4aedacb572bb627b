"""Counters that the processes keep for the monitor: fixed-layout records in the arena, one writer each.

A record is written as a whole under a sequence number. So a reader never sees the minimum of one step beside the
maximum of another. No writer ever waits for a reader: a late reader sees the newest values and the newest episodes.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sf.console import Console
from sf.shared.arena import Arena, Array, Field
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


NO_METRICS: Mapping[str, float] = {}


class Episode(NamedTuple):
    """One finished episode of one agent, with the raw return, before wrappers change it for training."""

    policy_id: int
    reward: float
    length: int
    true_objective: float
    metrics: Mapping[str, float] = NO_METRICS
    """Numbers of the environment's own, see `sf.envs.metrics`."""
    row: int = 0
    """The agent among all of the run; its next episode begins when this one ends."""

    def value_of(self, score: str) -> float | None:
        """The return for ``reward``, the metric NAME for ``env/NAME``; None if the episode has none of this name."""
        return self.reward if score == "reward" else self.metrics.get(score.removeprefix("env/"))


class EpisodeRing:
    """The last episodes that one rollout worker finished, or all of a serial run.

    Metrics have columns in the order in which their names came up, and the writer alone gives names to columns.
    """

    def __init__(self, arena: Arena, worker: int):
        self._episodes: Array = arena["episodes"][worker]
        self._metrics: Array = arena[METRICS][worker]
        self._name_bytes: Array = arena[METRIC_NAMES][worker]
        self._names: list[str] = []
        """Names of the columns that are known here."""
        self._read_names(MOST_METRICS)
        self._refuses_more = False
        self._count: Array = arena["episodes/count"][worker : worker + 1]
        self._read = 0
        self.unread = 0
        """Reader: episodes that were overwritten before it came."""

    def append(self, episode: Episode) -> None:
        """Writer: adds one episode."""
        count = int(self._count[0])
        row = self._metrics[count % METRICS_KEPT]
        if episode.metrics:
            columns = {name: self._column(name) for name in episode.metrics}
            row[:] = math.nan
            for name, value in episode.metrics.items():
                if (column := columns[name]) is not None:
                    row[column] = value
        row[-1] = len(self._names) if episode.metrics else 0
        self._episodes[count % EPISODES_KEPT] = (*episode[: NUM_COLUMNS - 1], episode.row)
        publish(self._count, 0, count + 1)

    def append_many(self, policy_id: int, columns: Array, names: Sequence[str]) -> None:
        """Writer: adds episodes at once, of which the newest that fit in are kept and the others counted.

        Args:
            policy_id: whose they are.
            columns: [n, 3 + metrics] row, return, length, and metrics in the order of `names`, nan where there is none.
            names: of the metrics.
        """
        count, number = int(self._count[0]), len(columns)
        kept = columns[-EPISODES_KEPT:]
        places = np.arange(count + number - len(kept), count + number)
        rows, returns, lengths = kept[:, :3].T
        self._episodes[places % EPISODES_KEPT] = np.stack(
            [np.full(len(kept), policy_id), returns, lengths, returns, rows], 1
        )
        kept, places = columns[-METRICS_KEPT:], places[-METRICS_KEPT:] % METRICS_KEPT
        self._metrics[places, :-1] = math.nan
        for index, name in enumerate(names):
            if (column := self._column(name)) is not None:
                self._metrics[places, column] = kept[:, 3 + index]
        self._metrics[places, -1] = len(self._names) if names else 0
        publish(self._count, 0, count + number)

    def _column(self, name: str) -> int | None:
        """Column of a metric; None for one more than there are columns, which is told."""
        if name not in self._names:
            self._read_names(MOST_METRICS)  # the workers of a serial run share a ring
        if name in self._names:
            return self._names.index(name)
        if len(self._names) == MOST_METRICS:
            if not self._refuses_more:
                Console().line(
                    f"Warning: the environment reports more than {MOST_METRICS} metrics; {name!r} and others that "
                    "come later are left out."
                )
            self._refuses_more = True
            return None
        encoded = name.encode(errors="surrogatepass")
        self._name_bytes[len(self._names), : len(encoded)] = list(encoded)
        self._names.append(name)
        return len(self._names) - 1

    def _read_names(self, number: int) -> None:
        """Those of so many columns; of the next one the writer may be writing the name."""
        for row in self._name_bytes[len(self._names) : number]:
            if not row[0]:
                return
            self._names.append(bytes(row).rstrip(b"\0").decode(errors="surrogatepass"))

    def recall(self) -> list[Episode]:
        """Reader: the newest from before a resume, oldest first; those that are gone were read then."""
        self._read = max(0, int(self._count[0]) - EPISODES_KEPT // 2)
        return self.new_episodes()

    def new_episodes(self) -> list[Episode]:
        """Reader: the episodes since the last call, oldest first; only the newest if there were too many."""
        count = int(observe(self._count, 0))
        start = max(self._read, count - EPISODES_KEPT // 2)  # the writer may be overwriting the oldest half meanwhile
        self.unread += start - self._read
        numbers = np.arange(start, count)
        rows = self._episodes[numbers % EPISODES_KEPT].tolist()
        metrics = self._metrics[numbers[-(METRICS_KEPT // 2) :] % METRICS_KEPT]
        self._read_names(int(metrics[:, -1].max(initial=0)))
        self._read = count
        without = [NO_METRICS] * (len(rows) - len(metrics))
        named = [*without, *(self._named(row[:-1], int(row[-1])) if row[-1] else NO_METRICS for row in metrics)]
        return [
            Episode(int(policy), reward, int(length), objective, own, int(row))
            for (policy, reward, length, objective, row), own in zip(rows, named, strict=True)
        ]

    def _named(self, values: Array, columns: int) -> dict[str, float]:
        pairs = zip(self._names[:columns], values[:columns].tolist(), strict=False)  # a resumed run has lost the names
        return {name: value for name, value in pairs if not math.isnan(value)}
