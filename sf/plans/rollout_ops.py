"""Operators that sample and batch (rows D20 to D23)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sf.errors import UsageError
from sf.plans.local_iterator import LocalIterator
from sf.plans.metrics import SharedMetrics
from sf.plans.parallel_iterator import ParallelIterator
from sf.plans.sample_batch import DEFAULT_POLICY, Batch, MultiAgentBatch, SampleBatch
from sf.plans.worker_set import WorkerSet, WorkerShards

STEPS_SAMPLED, AGENT_STEPS_SAMPLED = "num_steps_sampled", "num_agent_steps_sampled"
SAMPLE_TIMER = "sample"
LEAST_DEVIATION = 1e-4


def ParallelRollouts(workers: WorkerSet, *, mode: str = "bulk_sync", num_async: int = 1) -> Any:
    """Batches of the workers, which take the weights of the local one first.

    Args:
        workers: remote ones, or only the local one, which then samples.
        mode: ``bulk_sync`` for one fragment of each worker, concatenated; ``async`` for fragments as they come;
            ``raw`` for the parallel iterator itself.
        num_async: fragments of each worker under way in async mode.

    Raises:
        ValueError: there is no such mode.
    """
    if mode not in ("bulk_sync", "async", "raw"):
        raise ValueError(f"mode={mode!r} must be 'bulk_sync', 'async' or 'raw'.")
    if not workers.num_workers:
        return LocalIterator(lambda _: local_batches(workers), SharedMetrics(), name="rollouts").for_each(count_sampled)
    rollouts = ParallelIterator(WorkerShards(workers))
    if mode == "raw":
        return rollouts
    if mode == "async":
        return rollouts.gather_async(num_async).for_each(count_sampled)
    return rollouts.batch_across_shards().for_each(SampleBatch.concat_samples).for_each(count_sampled)


def local_batches(workers: WorkerSet) -> Iterator[Batch]:
    """Those that the local worker samples."""
    while True:
        yield workers.local_worker().sample()


def count_sampled(batch: Batch) -> Batch:
    """Counts the steps of a batch."""
    counters = LocalIterator.get_metrics().counters
    counters[STEPS_SAMPLED] += batch.count
    counters[AGENT_STEPS_SAMPLED] += batch.agent_steps()
    return batch


class ConcatBatches:
    """Keeps batches until they have enough steps, then gives them as one: for `combine`."""

    def __init__(self, min_batch_size: int, count_steps_by: str = "env_steps") -> None:
        """Keeps nothing yet.

        Raises:
            ValueError: `count_steps_by` is neither env_steps nor agent_steps.
        """
        if count_steps_by not in ("env_steps", "agent_steps"):
            raise ValueError(f"count_steps_by={count_steps_by!r} must be 'env_steps' or 'agent_steps'.")
        self.min_batch_size, self.count_steps_by = min_batch_size, count_steps_by
        self._batches: list[Batch] = []
        self._began_s: float | None = None

    def on_fetch_start(self) -> None:
        """Before the batch that is kept first is fetched."""
        if self._began_s is None:
            self._began_s = time.perf_counter()

    def __call__(self, batch: Batch) -> list[Batch]:
        self._batches.append(batch)
        size = sum(
            each.env_steps() if self.count_steps_by == "env_steps" else each.agent_steps() for each in self._batches
        )
        if size < self.min_batch_size:
            return []
        together: Batch = SampleBatch.concat_samples(self._batches)
        timer = LocalIterator.get_metrics().timers[SAMPLE_TIMER]
        timer.push(time.perf_counter() - (self._began_s or time.perf_counter()))
        timer.push_units_processed(together.count)
        self._batches, self._began_s = [], None
        return [together]


class SelectExperiences:
    """Keeps some policies of a batch, and its count of steps of environments; plain batches pass.

    Raises `UsageError` at a batch of a plan that has no policy of a name.
    """

    def __init__(self, policy_ids: Sequence[str]) -> None:
        """Keeps these.

        Raises:
            TypeError: they are no list.
        """
        if not isinstance(policy_ids, list):
            raise TypeError(f"SelectExperiences takes a list of policies, but got {policy_ids!r}.")
        self.policy_ids = policy_ids

    def __call__(self, samples: Batch) -> Batch:
        if isinstance(samples, SampleBatch):
            return samples
        if unknown := sorted(set(self.policy_ids) - samples.policy_ids):
            known = ", ".join(sorted(samples.policy_ids))
            raise UsageError(f"SelectExperiences names {', '.join(unknown)}, but the policies are {known}.")
        kept = {name: batch for name, batch in samples.policy_batches.items() if name in self.policy_ids}
        return MultiAgentBatch(kept, samples.count, samples.policy_ids)


class StandardizeFields:
    """(x - mean) / max(1e-4, deviation of the population) of some columns, in each policy."""

    def __init__(self, fields: Sequence[str]) -> None:
        """Standardizes these columns."""
        self.fields = list(fields)

    def __call__(self, samples: Batch) -> Batch:
        for name, batch in samples.policy_batches.items():
            for field in self.fields:
                if field not in batch:
                    where = "" if name == DEFAULT_POLICY else f" of policy {name}"
                    raise KeyError(f"The batch{where} has no column {field!r}, only {', '.join(batch)}.")
                column = np.asarray(batch[field])
                dtype = np.result_type(column.dtype, np.float32)  # that of whole numbers could not hold the result
                batch[field] = ((column - column.mean()) / max(LEAST_DEVIATION, column.std())).astype(dtype)
        return samples
