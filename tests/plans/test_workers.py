"""Workers of other processes: rows D1, D12, D13 and D20, their weights, and what breaks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sf.errors import RestartsSpent, UsageError
from sf.plans import Concurrently, LocalIterator, OperatorFailed, ParallelRollouts, SampleBatch, WorkerSet
from tests.helpers.planned import CRASHING, TEN_STEPS, CountingPolicy, check_columns


@pytest.fixture
def workers() -> Iterator[WorkerSet]:
    """One local and two remote ones."""
    settings = {"env": TEN_STEPS, "num_workers": 2, "num_envs_per_worker": 2, "rollout_fragment_length": 15, "seed": 1}
    with WorkerSet(CountingPolicy, settings) as workers:
        yield workers


@pytest.mark.more
def test_d12_remote_workers_have_the_weights_of_the_local_one(workers: WorkerSet) -> None:
    workers.local_worker().set_weights({"default_policy": {"w": 4.5}})
    workers.sync_weights()
    assert workers.foreach_worker(lambda worker: worker.get_weights()) == [{"default_policy": {"w": 4.5}}] * 3
    assert (
        workers.foreach_policy(lambda policy, name: (name, policy.get_weights()["w"])) == [("default_policy", 4.5)] * 3
    )
    assert workers.trainable_policies() == ["default_policy"]
    assert len(set(workers.foreach_worker(lambda _: os.getpid()))) == 3
    batches = [worker.sample() for worker in workers.remote_workers()]
    for batch in batches:
        check_columns(batch)
        assert batch.count == 30
        assert (batch["some_value"] == 4.5).all()
    assert not set(batches[0]["eps_id"]) & set(batches[1]["eps_id"]), "no two workers use the same number"
    workers.add_workers(1)
    assert len(workers.foreach_worker(lambda _: None)) == 4


def test_d13_manual_loop(workers: WorkerSet) -> None:
    for _ in range(3):
        futures = [worker.remote.sample() for worker in workers.remote_workers()]
        batch = SampleBatch.concat_samples([future.result() for future in futures])
        workers.local_worker().learn_on_batch(batch)
        workers.sync_weights()
    assert workers.local_worker().get_policy().learned == [60, 60, 60]
    assert workers.foreach_worker(lambda worker: worker.get_weights()) == [{"default_policy": {"w": 4.5}}] * 3


@pytest.mark.more
def test_a_sample_says_how_many_optimizer_steps_led_to_the_policy_that_acted(workers: WorkerSet) -> None:
    (first, _) = workers.remote_workers()
    assert set(first.sample()["policy_version"]) == {0}
    for _ in range(2):
        workers.local_worker().learn_on_batch(SampleBatch({"obs": np.zeros((3, 1))}))
    waiting = first.remote.sample().result()
    assert set(waiting["policy_version"]) == {0}, "nothing was pushed"
    workers.sync_weights()
    assert set(first.sample()["policy_version"]) == {2}


@pytest.mark.more
def test_d12_weights_of_one_remote_worker_are_set_until_others_are_pushed(workers: WorkerSet) -> None:
    first, second = workers.remote_workers()
    first.set_weights({"default_policy": {"w": 6.5}}, {"timestep": 7})
    assert first.apply(lambda worker: worker.global_vars) == {"timestep": 7}
    assert first.get_weights(["default_policy"]) == {"default_policy": {"w": 6.5}}
    for _ in range(2):
        assert set(first.sample()["some_value"]) == {6.5}
    assert set(second.sample()["some_value"]) == {1.5}
    workers.sync_weights()
    assert set(first.sample()["some_value"]) == {1.5}


class Holding(CountingPolicy):
    """Weights of any form."""

    held: Any = None

    def get_weights(self) -> Any:
        return self.held

    def set_weights(self, weights: Any) -> None:
        self.held = weights


def test_d1_weights_of_any_type_keep_their_bits_in_shared_memory() -> None:
    """They may grow, and become of other types."""
    wide = torch.arange(100_000)
    with WorkerSet(Holding, {"env": TEN_STEPS, "num_workers": 1, "rollout_fragment_length": 15}) as workers:
        for weights in (
            None,
            {"w": 3, "x": 0.1, "flag": True, "name": "heavy"},
            {"a": np.arange(6, dtype=np.float64).reshape(2, 3), "b": [np.int64(2), np.float32(0.3)], "w": 0.5},
            [wide[5:8], {"c": (1, 2)}],
        ):
            workers.local_worker().get_policy().held = weights
            workers.sync_weights()
            (found,) = workers.remote_workers()[0].get_weights().values()
            np.testing.assert_equal(found, [np.arange(5, 8), {"c": (1, 2)}] if isinstance(weights, list) else weights)
            workers.remote_workers()[0].sample()


def test_d20_modes(workers: WorkerSet) -> None:
    bulk = ParallelRollouts(workers, mode="bulk_sync")
    assert [batch.count for batch in bulk.take(2)] == [60, 60]
    assert bulk.shared_metrics.get().counters["num_steps_sampled"] == 120
    assert bulk.shared_metrics.get().counters["num_agent_steps_sampled"] == 120
    bulk.close()
    one_by_one = ParallelRollouts(workers, mode="async", num_async=2)
    assert [batch.count for batch in one_by_one.take(4)] == [30, 30, 30, 30]
    one_by_one.close()
    raw = ParallelRollouts(workers, mode="raw")
    assert not isinstance(raw, LocalIterator)
    sums = raw.for_each(lambda batch: (os.getpid(), float(batch["rewards"].sum()))).gather_sync()
    found = sums.take(4)
    assert {total for _, total in found} == {30.0}
    assert len({pid for pid, _ in found} | {os.getpid()}) == 3, "the function runs in the workers"
    sums.close()
    with pytest.raises(ValueError, match="must be 'bulk_sync', 'async' or 'raw'"):
        ParallelRollouts(workers, mode="sync")


@pytest.mark.more
def test_worker_that_is_killed_is_replaced_and_counted(workers: WorkerSet) -> None:
    first, second = workers.remote_workers()
    first.sample()
    processes = workers.fragments.processes
    pid = processes.pids()["rollout-1"]
    future = second.remote.sample()
    os.kill(pid, signal.SIGKILL)
    check_columns(future.result())
    check_columns(second.sample())
    assert second.apply(lambda _: os.getpid()) != pid
    assert processes.faults()["faults/restarts"] == 1


@pytest.mark.more
def test_transforms_survive_the_worker(workers: WorkerSet) -> None:
    raw = ParallelRollouts(workers, mode="raw")
    counts = raw.for_each(lambda batch: batch.count).gather_async()
    assert next(counts) == 30
    processes = workers.fragments.processes
    os.kill(processes.pids()["rollout-0"], signal.SIGKILL)
    assert counts.take(6) == [30] * 6
    counts.close()


@pytest.mark.more
def test_environment_that_crashes_again_and_again_in_one_worker_ends_the_plan_in_order() -> None:
    settings = {
        "env": CRASHING, "env_config": {"only": 1}, "num_workers": 2, "rollout_fragment_length": 50,
        "faults": {"max_restarts": 1}, "seed": 1,
    }  # fmt: skip
    with WorkerSet(CountingPolicy, settings) as workers, pytest.raises(RestartsSpent, match="died more than 1 times"):
        ParallelRollouts(workers, mode="bulk_sync").take(2)


@pytest.mark.more
def test_exception_in_a_function_that_workers_were_sent(workers: WorkerSet) -> None:
    with pytest.raises(OperatorFailed, match="worker 0 was sent raised ZeroDivisionError"):
        workers.foreach_worker(lambda worker: 1 / worker.worker_index if hasattr(worker, "worker_index") else 0)
    assert workers.remote_workers()[0].sample().count == 30, "the worker goes on"


@pytest.mark.more
def test_result_of_a_function_that_cannot_be_sent_back(workers: WorkerSet) -> None:
    with pytest.raises(OperatorFailed, match="worker 0 was sent raised TypeError: cannot pickle"):
        workers.foreach_worker(lambda worker: threading.Lock() if getattr(worker, "worker_index", 1) == 0 else None)
    assert workers.remote_workers()[0].sample().count == 30, "the worker goes on"


@pytest.mark.more
def test_nothing_is_left_behind(workers: WorkerSet) -> None:
    workers.remote_workers()[0].remote.sample()
    processes = workers.fragments.processes
    pids = list(processes.pids().values())
    workers.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_policy_that_cannot_be_sent_is_refused() -> None:
    class Locked(CountingPolicy):
        held = threading.Lock()

    settings = {"env": TEN_STEPS, "num_workers": 1}
    with WorkerSet(Locked, settings) as workers, pytest.raises(UsageError, match="cannot be sent"):
        workers.remote_workers()


@pytest.mark.more
def test_worker_that_dies_in_an_async_union_is_replaced(workers: WorkerSet) -> None:
    """A union asks without waiting, and supervision must not depend on a wait."""
    first, second = ParallelRollouts(workers).duplicate(2)
    together = Concurrently([first, second], mode="async")
    next(together)
    processes = workers.fragments.processes
    os.kill(processes.pids()["rollout-1"], signal.SIGKILL)
    assert len(together.take(6)) == 6
    together.close()
    assert processes.faults()["faults/restarts"] == 1


@pytest.mark.more
def test_items_of_a_slot_that_is_filled_again_are_kept() -> None:
    settings = {"env": TEN_STEPS, "num_workers": 1, "rollout_fragment_length": 1, "seed": 1}
    with WorkerSet(CountingPolicy, settings) as workers:
        counts = ParallelRollouts(workers, mode="raw").for_each(lambda batch: batch.count).gather_async(6)
        assert counts.take(400) == [1] * 400
        counts.close()


def test_function_that_fails_in_a_worker_is_named_and_nothing_hangs(workers: WorkerSet) -> None:
    def divides(batch: SampleBatch) -> float:
        return 1 / 0

    failing = ParallelRollouts(workers, mode="raw").for_each(divides).gather_async()
    with pytest.raises(OperatorFailed, match=r"In worker \d: The operator divides raised ZeroDivisionError"):
        next(failing)
    assert ParallelRollouts(workers).take(1)[0].count == 60, "the workers go on"


def test_iterator_that_was_closed_leaves_its_workers_to_the_next_one(workers: WorkerSet) -> None:
    first = ParallelRollouts(workers, mode="async", num_async=2)
    next(first)
    second = ParallelRollouts(workers, mode="async")
    with pytest.raises(UsageError, match="Another iterator reads these remote workers"):
        next(second)
    first.close()
    second = ParallelRollouts(workers, mode="async", num_async=2)
    workers.local_worker().set_weights({"default_policy": {"w": 8.5}})
    for batch in second.take(8):
        check_columns(batch)
        assert set(batch["some_value"]) == {8.5}, "nothing of the closed iterator comes after it"
    second.close()


@pytest.mark.more
def test_workers_that_were_stopped_do_not_begin_again(workers: WorkerSet) -> None:
    worker = workers.remote_workers()[0]
    worker.sample()
    workers.stop()
    with pytest.raises(UsageError, match="These workers were stopped"):
        worker.sample()


@pytest.mark.more
def test_remote_functions_see_whole_episodes() -> None:
    settings = {"env": TEN_STEPS, "num_workers": 1, "batch_mode": "complete_episodes", "rollout_fragment_length": 5}
    with WorkerSet(CountingPolicy, settings) as workers:
        steps = ParallelRollouts(workers, mode="raw").for_each(lambda batch: batch["t"].tolist()).gather_sync()
        assert steps.take(3) == [list(range(10))] * 3
        (worker,) = workers.remote_workers()
        with pytest.raises(UsageError, match="An iterator with functions reads these remote workers"):
            worker.sample()
        assert steps.take(1) == [list(range(10))], "nothing of it is lost"
        steps.close()
        assert ParallelRollouts(workers).take(1)[0]["t"].tolist() == list(range(10))


def test_d24_remote_policies_know_the_steps_of_the_plan(workers: WorkerSet) -> None:
    workers.local_worker().set_global_vars({"timestep": 40})
    workers.sync_weights()
    assert workers.foreach_worker(lambda worker: worker.global_vars) == [{"timestep": 40}] * 3
