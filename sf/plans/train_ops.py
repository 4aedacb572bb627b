"""Operators that learn (rows D24 to D28), and that keep target networks (row D41)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sf.plans.local_iterator import LocalIterator, NotReady
from sf.plans.metrics import MetricsContext, SharedMetrics
from sf.plans.minibatches import minibatches
from sf.plans.parallel_iterator import ParallelIterator
from sf.plans.policy_map import PolicyMap
from sf.plans.rollout_ops import AGENT_STEPS_SAMPLED, STEPS_SAMPLED, local_batches
from sf.plans.sample_batch import DEFAULT_POLICY, Batch, SampleBatch
from sf.plans.worker import RemoteWorker
from sf.plans.worker_set import WorkerSet, WorkerShards

STEPS_TRAINED, AGENT_STEPS_TRAINED = "num_steps_trained", "num_agent_steps_trained"
LEARN_TIMER, APPLY_TIMER, COMPUTE_TIMER, SYNC_TIMER = "learn", "apply_grad", "compute_grads", "update"
LAST_TARGET_UPDATE, NUM_TARGET_UPDATES = "last_target_update_ts", "num_target_updates"
LEARNER_INFO = "learner"
STEPS_OF_GRADIENTS = "steps_of_gradients"
"""Optimizer steps that led to the gradients that are not applied yet."""
Computed = tuple[Any, Mapping[str, Any], int, int, int]
"""Gradients, statistics by policy, steps of environments, steps of agents, and optimizer steps before."""


class StepCount(int):
    """Steps of environments behind gradients, which knows those of agents."""

    agent_steps: int

    @classmethod
    def of(cls, steps: int, agent_steps: int) -> StepCount:
        """From both numbers."""
        count = cls(steps)
        count.agent_steps = agent_steps
        return count


class TrainOneStep:
    """Learns on the local worker; then pushes weights and the global time step to all remote ones."""

    def __init__(
        self,
        workers: WorkerSet,
        policies: Sequence[str] | None = None,
        num_sgd_iter: int = 1,
        sgd_minibatch_size: int = 0,
    ) -> None:
        """Learns on whole batches unless there is a size.

        Args:
            workers: of the plan.
            policies: that learn; None or no names for all that are trained.
            num_sgd_iter: passes over a batch.
            sgd_minibatch_size: rows of a minibatch, drawn anew in each pass; 0 for the whole batch. A recurrent policy
                gets whole sequences.

        Raises:
            UsageError: there is no policy of a name.
        """
        self.workers = workers
        self.policies = list(policies or workers.trainable_policies())
        self.num_sgd_iter, self.sgd_minibatch_size = num_sgd_iter, sgd_minibatch_size
        for name in self.policies:
            workers.local_worker().get_policy(name)
        self._random = np.random.default_rng(workers.config["seed"])

    def __call__(self, batch: Batch) -> tuple[Batch, dict[str, Any]]:
        metrics, local = LocalIterator.get_metrics(), self.workers.local_worker()
        with metrics.timers[LEARN_TIMER] as timer:
            info = {
                name: self._learn(local, name, own)
                for name, own in batch.policy_batches.items()
                if name in self.policies
            }
            timer.push_units_processed(batch.count)
        metrics.counters[STEPS_TRAINED] += batch.count
        metrics.counters[AGENT_STEPS_TRAINED] += batch.agent_steps()
        metrics.info[LEARNER_INFO] = {**metrics.info.get(LEARNER_INFO, {}), **info}
        push_weights(self.workers, metrics)
        return batch, info

    def _learn(self, local: PolicyMap, name: str, batch: SampleBatch) -> dict[str, Any]:
        found = [
            local.learn(name, part)
            for _ in range(self.num_sgd_iter)
            for part in minibatches(batch, self.sgd_minibatch_size, self._random)
        ]
        return _means(found)


class TrainTFMultiGPU(TrainOneStep):
    """The same operator by the name that plans for several devices use (row D25).

    A minibatch has a whole number of rows for each device. `sf` trains a plan's policy on one device.
    """

    def __init__(self, workers: WorkerSet, sgd_minibatch_size: int, num_sgd_iter: int, num_devices: int = 1) -> None:
        """See `TrainOneStep`.

        Raises:
            ValueError: a minibatch has fewer rows than there are devices.
        """
        per_device = sgd_minibatch_size // num_devices
        if not per_device:
            raise ValueError(f"sgd_minibatch_size={sgd_minibatch_size} gives nothing to one of {num_devices} devices.")
        super().__init__(workers, None, num_sgd_iter, per_device * num_devices)
        self.per_device_batch_size = per_device


class ComputeGradients:
    """From a batch to gradients and a count, on the local worker, without an update."""

    def __init__(self, workers: WorkerSet) -> None:
        """Computes with the local one of these workers."""
        self.workers = workers

    def __call__(self, samples: Batch) -> tuple[Any, int]:
        metrics = LocalIterator.get_metrics()
        with metrics.timers[COMPUTE_TIMER] as timer:
            gradients, info = self.workers.local_worker().compute_gradients(samples)
            timer.push_units_processed(samples.count)
        metrics.info[LEARNER_INFO] = {DEFAULT_POLICY: info} if isinstance(samples, SampleBatch) else info
        return gradients, StepCount.of(samples.count, samples.agent_steps())


class AverageGradients:
    """From a list of (gradients, count) to their mean and the sum of the counts (row D28)."""

    def __call__(self, gradients: Sequence[tuple[Any, int]]) -> tuple[Any, int]:
        each, counts = [one for one, _ in gradients], [count for _, count in gradients]
        return _mean_of(each), StepCount.of(sum(counts), sum(map(_agent_steps, counts)))


class ApplyGradients:
    """Applies gradients on the local worker, and pushes the weights."""

    def __init__(self, workers: WorkerSet, policies: Sequence[str] | None = None, update_all: bool = True) -> None:
        """Pushes to all workers, or only to the one that the gradients come from.

        Args:
            workers: of the plan.
            policies: names of what is pushed; ignored, as in `WorkerSet.sync_weights`.
            update_all: False for asynchronous gradients.
        """
        self.workers, self.update_all = workers, update_all

    def __call__(self, item: Any) -> None:
        if not isinstance(item, tuple) or len(item) != 2:
            raise ValueError(f"ApplyGradients takes (gradients, count), but got {type(item).__name__}.")
        gradients, count = item
        metrics = LocalIterator.get_metrics()
        metrics.counters[STEPS_TRAINED] += count
        metrics.counters[AGENT_STEPS_TRAINED] += _agent_steps(count)
        with metrics.timers[APPLY_TIMER] as timer:
            self.workers.local_worker().apply_gradients(gradients, metrics.info.pop(STEPS_OF_GRADIENTS, None))
            timer.push_units_processed(count)
        if self.update_all:
            push_weights(self.workers, metrics)
            return
        if metrics.current_actor is None:
            raise ValueError("update_all=False needs the worker that the gradients come from. Use AsyncGradients.")
        if isinstance(metrics.current_actor, RemoteWorker):
            push_weights(self.workers, metrics, metrics.current_actor)


def AsyncGradients(workers: WorkerSet) -> LocalIterator:
    """(gradients, count) of fragments, computed where they were sampled, as they come; sets ``current_actor``."""
    if workers.num_workers:  # with weights that are no older than need be
        gradients = ParallelIterator(WorkerShards(workers, make=_gradients_of)).gather_async(ask_before=False)
        return gradients.for_each(_note_gradients)
    local, metrics = workers.local_worker(), SharedMetrics()

    def source(_: float | None) -> Iterator[Computed]:
        for batch in local_batches(workers):
            metrics.get().current_actor = local
            yield _computed(local, batch)

    return LocalIterator(source, metrics, name="AsyncGradients").for_each(_note_gradients)


def _gradients_of(worker: Any) -> Any:
    """The orders of a worker: transforms of its batches."""

    def compute(batches: Any) -> Any:
        for batch in batches:
            yield batch if isinstance(batch, NotReady) else _computed(worker, batch)

    return [compute]


def _computed(worker: PolicyMap, batch: Batch) -> Computed:
    gradients, info = worker.compute_gradients(batch)
    by_policy = {DEFAULT_POLICY: info} if isinstance(batch, SampleBatch) else info
    return gradients, by_policy, batch.env_steps(), batch.agent_steps(), worker.num_steps


def _note_gradients(item: Computed) -> tuple[Any, int]:
    gradients, info, count, agent_steps, steps = item
    metrics = LocalIterator.get_metrics()
    metrics.counters[STEPS_SAMPLED] += count
    metrics.counters[AGENT_STEPS_SAMPLED] += agent_steps
    metrics.info[LEARNER_INFO], metrics.info[STEPS_OF_GRADIENTS] = dict(info), steps
    return gradients, StepCount.of(count, agent_steps)


def _agent_steps(count: int) -> int:
    """Those of environments where a function of the plan has made another count."""
    return getattr(count, "agent_steps", count)


class UpdateTargetNetwork:
    """Calls ``update_target`` of the policies when more than so many steps have passed."""

    def __init__(
        self,
        workers: WorkerSet,
        target_update_freq: int,
        by_steps_trained: bool = False,
        policies: Sequence[str] | None = None,
    ) -> None:
        """Counts sampled steps unless trained ones are asked for; no names are all policies that are trained."""
        self.workers, self.target_update_freq = workers, target_update_freq
        self.policies = list(policies or workers.trainable_policies())
        self.metric = STEPS_TRAINED if by_steps_trained else STEPS_SAMPLED

    def __call__(self, _: Any) -> None:
        metrics = LocalIterator.get_metrics()
        now, last = metrics.counters[self.metric], metrics.counters[LAST_TARGET_UPDATE]
        if now - last > self.target_update_freq:
            for name in self.policies:
                self.workers.local_worker().get_policy(name).update_target()
            metrics.counters[NUM_TARGET_UPDATES] += 1
            metrics.counters[LAST_TARGET_UPDATE] = now


def push_weights(workers: WorkerSet, metrics: MetricsContext, only: RemoteWorker | None = None) -> None:
    """Publishes the weights of the local worker, and tells the policies how far the plan is."""
    workers.local_worker().set_global_vars({"timestep": metrics.counters[STEPS_SAMPLED]})
    if workers.num_workers:
        with metrics.timers[SYNC_TIMER]:
            workers.sync_weights(only=only)


def _means(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means of the numbers, the last one of everything else."""
    if len(infos) == 1:
        return dict(infos[0])
    found: dict[str, Any] = {}
    for name in infos[-1] if infos else ():
        values = [info[name] for info in infos if name in info]
        is_number = all(isinstance(value, (int, float, np.floating)) for value in values)
        found[name] = float(np.mean(values)) if is_number else values[-1]
    return found


def _mean_of(each: Sequence[Any]) -> Any:
    if isinstance(each[0], Mapping):
        names = dict.fromkeys(name for one in each for name in one)
        return {name: _mean_of([one[name] for one in each if name in one]) for name in names}
    if isinstance(each[0], (list, tuple)):
        return [_mean_of(parts) for parts in zip(*each, strict=True)]
    return None if each[0] is None else sum(each[1:], each[0]) / len(each)
