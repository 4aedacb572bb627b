"""Buffers of earlier experience and their operators (rows D29 and D30)."""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from sf.errors import UsageError
from sf.plans.actors import Actor
from sf.plans.local_iterator import NOT_READY, LocalIterator
from sf.plans.metrics import SharedMetrics
from sf.plans.sample_batch import Batch, MultiAgentBatch, SampleBatch, widest
from sf.plans.shards import ParallelIteratorWorker, from_actors
from sf.replay.proportional import ProportionalSampler
from sf.shared.arena import Array

LEAST_PRIORITY = 1e-6
MOST_UNDER_WAY = 4
"""Batches that are on the way to a buffer in another process."""
OF_A_DRAW = frozenset({"batch_indexes", "weights"})
"""Columns that each draw makes anew."""


class Buffer(Protocol):
    """Keeps batches and draws some of their rows."""

    def add_batch(self, batch: Batch) -> None:
        """Keeps the rows of a batch."""

    def replay(self) -> Any:
        """Rows that were drawn; None while there are too few."""


class RowBuffer:
    """The newest rows of one policy, each with a priority.

    A `sf.replay.TensorStorage` keeps tensors, of the types that the first rows have. Columns of a batch may be texts,
    and whole numbers that become fractions.
    """

    def __init__(
        self, capacity: int, random_numbers: np.random.Generator, alpha: float, least: float = LEAST_PRIORITY
    ) -> None:
        """Is empty.

        Args:
            capacity: rows, of which the oldest ones leave first.
            random_numbers: of the draws.
            alpha: exponent of the priorities; 0 draws all alike.
            least: added to each error, so that no row is never drawn.
        """
        self.capacity, self._random, self._alpha, self._least = capacity, random_numbers, alpha, least
        self._columns: dict[str, Array] = {}
        self._shares, self._largest = ProportionalSampler(capacity), 1.0
        self._next = self.num_rows = 0

    def add(self, batch: SampleBatch) -> None:
        """Keeps the rows, as likely as the most likely one so far; a column ``weights`` has other first priorities.

        Raises:
            UsageError: the batch has other columns than the one before.
        """
        batch = batch.slice(max(0, batch.count - self.capacity), batch.count)
        self._make_room_for({name: np.asarray(column) for name, column in batch.items() if name not in OF_A_DRAW})
        places = (self._next + np.arange(batch.count)) % self.capacity
        for name, column in self._columns.items():
            column[places] = batch[name]
        priorities = np.full(batch.count, self._largest)
        if "weights" in batch:
            priorities = np.maximum(batch["weights"], self._least)
        self._shares.set(places, priorities**self._alpha)
        self._next = int(self._next + batch.count) % self.capacity
        self.num_rows = min(self.capacity, self.num_rows + batch.count)

    def _make_room_for(self, added: Mapping[str, Array]) -> None:
        """A column gets a wider type where its own would change the values that are added."""
        if not self._columns:
            self._columns = {
                name: np.zeros((self.capacity, *column.shape[1:]), column.dtype) for name, column in added.items()
            }
        if changed := sorted(added.keys() ^ self._columns.keys()):
            raise UsageError(
                f"The buffer has the columns {', '.join(self._columns)}, but a batch has {', '.join(added)}. "
                f"Store {', '.join(changed)} in every batch or in none."
            )
        for name, column in added.items():
            kept = self._columns[name]
            if kept.dtype != column.dtype:
                self._columns[name] = kept.astype(widest([kept, column], name), copy=False)

    def draw(self, size: int, beta: float) -> SampleBatch:
        """Rows in proportion to priority^alpha, with columns ``batch_indexes`` and ``weights``.

        Weights are (rows · probability)^-beta, divided by the largest one there could be (Schaul et al. 2016,
        arXiv:1511.05952, section 3.4). So they do not depend on which other rows are drawn.
        """
        points = self._random.random(size)
        rows = self._shares.at(points) if self._alpha else (points * self.num_rows).astype(np.int64)
        weights = (self._shares.shares(rows) / self._shares.smallest) ** -beta
        columns = {name: column[rows] for name, column in self._columns.items()}
        return SampleBatch({**columns, "batch_indexes": rows, "weights": weights.astype(np.float32)})

    def update_priorities(self, rows: Array, errors: Array) -> None:
        """New priorities of rows that were drawn, after their errors of prediction."""
        priorities = np.abs(errors) + self._least
        self._shares.set(rows, priorities**self._alpha)
        self._largest = max(self._largest, float(priorities.max()))


class LocalReplayBuffer(ParallelIteratorWorker):
    """Rows of each policy, drawn with or without priorities; as an actor it gives draws, None while there are none."""

    def __init__(
        self,
        num_shards: int = 1,
        learning_starts: int = 1000,
        buffer_size: int = 10_000,
        replay_batch_size: int = 32,
        prioritized_replay_alpha: float = 0.6,
        prioritized_replay_beta: float = 0.4,
        prioritized_replay_eps: float = LEAST_PRIORITY,
        replay_mode: str = "independent",
        seed: int | None = None,
    ) -> None:
        """Is empty.

        Args:
            num_shards: of buffers that share the sizes below.
            learning_starts: steps that are stored before any is drawn.
            buffer_size: rows of each policy.
            replay_batch_size: rows of a draw.
            prioritized_replay_alpha: exponent of the priorities; 0 draws all alike.
            prioritized_replay_beta: exponent of the correction for that.
            prioritized_replay_eps: added to each error, so that no row is never drawn.
            replay_mode: ``independent`` draws rows of each policy by itself; ``lockstep`` draws whole stored batches,
                so that all policies have the same steps.
            seed: of the draws; None for one from the global generator of NumPy. The seed of a plan has seeded that of
                the program, but not that of an `Actor`.

        Raises:
            ValueError: there is no such mode, or a size is too small.
        """
        if replay_mode not in ("independent", "lockstep"):
            raise ValueError(f"replay_mode={replay_mode!r} must be 'independent' or 'lockstep'.")
        super().__init__(lambda: iter(self.replay, object()))
        self._starts, self._size = learning_starts // num_shards, buffer_size // num_shards
        if self._size < 1 or replay_batch_size < 1:
            raise ValueError(
                f"buffer_size={buffer_size} over num_shards={num_shards} and replay_batch_size={replay_batch_size} "
                "must be above 0."
            )
        if prioritized_replay_alpha < 0 or prioritized_replay_eps < 0:
            raise ValueError(
                f"prioritized_replay_alpha={prioritized_replay_alpha} and "
                f"prioritized_replay_eps={prioritized_replay_eps} must be at least 0."
            )
        self._batch, self._alpha, self._beta = replay_batch_size, prioritized_replay_alpha, prioritized_replay_beta
        self._least = prioritized_replay_eps
        self._lockstep: list[MultiAgentBatch] | None = [] if replay_mode == "lockstep" else None
        self._random = np.random.default_rng(np.random.randint(2**31) if seed is None else seed)
        self.buffers: dict[str, RowBuffer] = {}
        self.num_added = 0
        """Steps so far."""

    def add_batch(self, batch: Batch) -> None:
        """See `Buffer`."""
        together = batch.as_multi_agent().copy()
        self.num_added += batch.count
        if self._lockstep is not None:
            self._lockstep.append(together)
            while sum(each.count for each in self._lockstep) - self._lockstep[0].count >= self._size:
                self._lockstep.pop(0)
            return
        for policy, own in together.policy_batches.items():
            if policy not in self.buffers:
                self.buffers[policy] = RowBuffer(self._size, self._random, self._alpha, self._least)
            own.pop("infos", None)
            self.buffers[policy].add(own)

    def replay(self) -> Any:
        """See `Buffer`: steps of all policies, or a plain batch of the default policy."""
        if self.num_added < self._starts or not self.num_added:
            return None
        if self._lockstep is not None:
            drawn: list[MultiAgentBatch] = []
            while sum(each.count for each in drawn) < self._batch:
                drawn.append(self._lockstep[self._random.integers(len(self._lockstep))])
            return MultiAgentBatch.concat_samples(drawn)
        batches = {name: own.draw(self._batch, self._beta) for name, own in self.buffers.items()}
        return MultiAgentBatch.wrap_as_needed(batches, self._batch)

    def update_priorities(self, errors: dict[str, tuple[Array, Array]]) -> None:
        """By policy: rows that were drawn, and their errors."""
        for policy, (rows, own) in errors.items():
            self.buffers[policy].update_priorities(rows, own)


class StoreToReplayBuffer:
    """Stores each batch, and gives it on."""

    def __init__(self, *, local_buffer: Buffer | None = None, actors: Sequence[Any] | None = None) -> None:
        """Into a buffer, or into one of several at random.

        Args:
            local_buffer: see above.
            actors: buffers of this process, or each an `Actor` that holds one.

        Raises:
            ValueError: none is given, or both kinds are.
        """
        self._buffers = _buffers(local_buffer, actors)
        self._stored: collections.deque[Future[None]] = collections.deque()

    def __call__(self, batch: Batch) -> Batch:
        buffer = random.choice(self._buffers)
        if not isinstance(buffer, Actor):
            buffer.add_batch(batch)
            return batch
        self._stored.append(buffer.call("add_batch", batch))
        if len(self._stored) > MOST_UNDER_WAY * len(self._buffers):
            self._stored.popleft().result()
        return batch


def Replay(
    *, local_buffer: Buffer | None = None, actors: Sequence[Any] | None = None, num_async: int = 4
) -> LocalIterator:
    """Batches that are drawn from a buffer, or from several; not ready while it has too few; sets ``current_actor``.

    Args:
        local_buffer: of this process.
        actors: buffers of this process, which are read in turn, or each an `Actor` that holds one.
        num_async: draws of each `Actor` under way.

    Raises:
        ValueError: none is given, or both kinds are.
    """
    buffers = _buffers(local_buffer, actors)
    if all(isinstance(buffer, Actor) for buffer in buffers):
        return from_actors(buffers).gather_async(num_async).transform(_ready)
    metrics = SharedMetrics()

    def source(_: float | None) -> Iterator[Any]:
        while True:
            for buffer in buffers:
                batch = buffer.replay()
                metrics.get().current_actor = buffer
                yield NOT_READY if batch is None else batch

    return LocalIterator(source, metrics, name="Replay")


def _ready(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield NOT_READY if batch is None else batch


def _buffers(local_buffer: Any, actors: Sequence[Any] | None) -> list[Any]:
    if (local_buffer is None) == (actors is None):
        raise ValueError("Give either local_buffer or actors.")
    if actors is not None and not actors:
        raise ValueError("actors is empty. Give one buffer at least.")
    return [local_buffer] if local_buffer is not None else list(actors or ())


class UpdatePriorities:
    """After training on a draw: priorities follow the statistic ``td_error`` [n] of each policy."""

    def __init__(self, buffer: LocalReplayBuffer | None = None) -> None:
        """Tells this buffer; None for the one that the draw comes from."""
        self._buffer = buffer

    def __call__(self, item: tuple[Batch, dict[str, Any]]) -> tuple[Batch, dict[str, Any]]:
        batch, info = item
        rows_of = {name: own["batch_indexes"] for name, own in batch.policy_batches.items() if "batch_indexes" in own}
        if missing := [name for name in rows_of if name in info and "td_error" not in info[name]]:
            raise ValueError(
                f"Policy {missing[0]!r} has the statistics {', '.join(info[missing[0]])}, and no td_error. Return one "
                "[n] for each row of the batch from its stats_fn."
            )
        errors = {name: (rows, np.asarray(info[name]["td_error"])) for name, rows in rows_of.items() if name in info}
        for name, (rows, own) in errors.items():
            if own.shape != (len(rows),):
                raise ValueError(
                    f"Policy {name!r} has td_error of shape {list(own.shape)} for {len(rows)} rows. Priorities need "
                    "one for each, [n], so train once on the whole batch."
                )
        buffer: Any = self._buffer or LocalIterator.get_metrics().current_actor
        if isinstance(buffer, Actor):
            buffer.call("update_priorities", errors)
        else:
            buffer.update_priorities(errors)
        return item
