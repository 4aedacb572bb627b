"""Where a learner takes its batches from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sf.learner.batch import Batch
from sf.learner.batcher import Batcher


class BatchSource(Protocol):
    """Hands out one batch at a time. `sf.learner.batcher.Batcher` makes them of full slots, each used once."""

    @property
    def num_used(self) -> int:
        """Trajectories that were handed out so far, those before a resume included."""

    @property
    def rows_waiting(self) -> int:
        """Trajectories that are complete and not yet in a batch."""

    def next(self, at_least: int | None = None) -> Batch | None:
        """The next batch, or None while there is not enough; never waits.

        Args:
            at_least: trajectories that are enough, of which it takes all there are; None for a whole batch.

        The batch is valid until `release`, which must be called before the next one is asked for.
        """

    def release(self, was_trained_on: bool = True) -> int:
        """Ends the use of the batch that was handed out last.

        Args:
            was_trained_on: there was an optimizer step.

        Returns:
            How many slots were given back. Rollout workers that wait for a free one must be woken.
        """

    def state(self) -> Any:
        """The state that a resumed run needs of it between two batches, in plain JSON types."""

    def load_state(self, state: Any) -> None:
        """Goes on where `state` was taken."""


class ReleasedAtOnce:
    """Gives slots back as soon as their batch is assembled, for a learner that copies all of it into a buffer.

    Rollout workers go on while the learner trains. The slots count as learned from, unless there is no step.
    """

    def __init__(self, source: Batcher, wake_workers: Callable[[], None]) -> None:
        """Takes batches from another source, and calls `wake_workers` when slots have become free."""
        self._source, self._wake_workers = source, wake_workers

    @property
    def num_used(self) -> int:
        """See `BatchSource`."""
        return self._source.num_used

    @property
    def rows_waiting(self) -> int:
        """See `BatchSource`."""
        return self._source.rows_waiting

    def next(self, at_least: int | None = None) -> Batch | None:
        """See `BatchSource`."""
        batch = self._source.next(at_least)
        if batch is not None and self._source.release():
            self._wake_workers()
        return batch

    def release(self, was_trained_on: bool = True) -> int:
        """See `BatchSource`; the slots went back before."""
        if not was_trained_on:
            self._source.had_no_step()
        return 0

    def state(self) -> Any:
        """See `BatchSource`."""
        return self._source.state()

    def load_state(self, state: Any) -> None:
        """See `BatchSource`."""
        self._source.load_state(state)
