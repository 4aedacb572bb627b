"""The newest episodes of each worker, in rings in shared memory that a late reader sees the end of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sf.console import Console
from sf.shared.arena import Arena, Array
from sf.shared.order import observe, publish
from sf.shared.records import EPISODES_KEPT, METRIC_NAMES, METRICS, METRICS_KEPT, MOST_METRICS, NUM_COLUMNS

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
                Console().line_once(
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
