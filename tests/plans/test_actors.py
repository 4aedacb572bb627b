"""Objects in other processes: parallel iterators over them, and replay buffers there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sf.errors import UsageError, WorkerCrashed
from sf.plans import (
    Actor,
    Concurrently,
    LocalIterator,
    LocalReplayBuffer,
    OperatorFailed,
    ParallelIteratorWorker,
    Replay,
    SampleBatch,
    StoreToReplayBuffer,
    UpdatePriorities,
    WorkerSet,
    from_actors,
)
from tests.helpers.planned import TEN_STEPS, CountingPolicy

of = LocalIterator.of


def test_objects_of_this_process_are_actors() -> None:
    evens, odds = ParallelIteratorWorker([0, 2, 4]), ParallelIteratorWorker(lambda: iter([1, 3]))
    numbers = from_actors([evens, odds]).for_each(lambda x: 10 * x)
    assert numbers.gather_sync().take(9) == [0, 10, 20, 30, 40]
    sources: list[Any] = []

    def note(x: int) -> int:
        sources.append(LocalIterator.get_metrics().current_actor)
        return x

    assert sorted(numbers.gather_async(2).for_each(note).take(9)) == [0, 10, 20, 30, 40]
    assert {id(source) for source in sources} == {id(evens), id(odds)}
    assert from_actors([ParallelIteratorWorker([1, 2], repeat=True)]).take(5) == [1, 2, 1, 2, 1]
    with pytest.raises(UsageError, match="one actor at least"):
        from_actors([])
    with pytest.raises(ValueError, match="repeats has no items"):
        from_actors([ParallelIteratorWorker([], repeat=True)]).take(1)


@pytest.mark.more
def test_actors_of_other_processes_work_and_end() -> None:
    class Own(ParallelIteratorWorker):
        """Known to no module."""

        def fails(self) -> float:
            return 1 / 0

    actor = Actor(Own, range(3))
    here = from_actors([actor]).for_each(lambda x: (x, os.getpid())).gather_sync().take(9)
    assert [x for x, _ in here] == [0, 1, 2]
    assert {pid for _, pid in here} == {actor.remote.apply(lambda _: os.getpid()).result()} != {os.getpid()}
    with pytest.raises(OperatorFailed, match="The actor Own raised ZeroDivisionError"):
        actor.remote.fails().result()
    waiting = actor.remote.apply(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(WorkerCrashed, match="The process of the actor Own has ended"):
        waiting.result()
    actor.stop()
    never_called = Actor(Own, range(3))
    never_called.stop()
    for ended in (actor, never_called):
        with pytest.raises(UsageError, match="Own has ended"):
            ended.remote.fails()


class Unreadable:
    def __reduce__(self) -> Any:
        return (int, ("no number",))


@pytest.mark.more
def test_actor_answers_after_a_cancelled_call_and_a_result_that_cannot_be_read() -> None:
    remote = Actor(ParallelIteratorWorker, range(3)).remote
    cancelled = remote.apply(lambda _: "no one waits")
    assert cancelled.cancel()
    unreadable = remote.apply(lambda _: Unreadable())
    with pytest.raises(OperatorFailed, match="returned what cannot be unpickled here: ValueError: invalid literal"):
        unreadable.result(60)
    crashed, cancelled = (remote.apply(lambda _: os.kill(os.getpid(), signal.SIGKILL)) for _ in range(2))
    cancelled.cancel()
    with pytest.raises(WorkerCrashed):
        crashed.result(60)
    assert Actor(ParallelIteratorWorker, range(3)).remote.apply(lambda _: 7).result(60) == 7


@pytest.fixture(scope="module")
def buffers() -> Iterator[list[Actor]]:
    """In two processes."""
    settings = {"learning_starts": 4, "buffer_size": 64, "replay_batch_size": 500, "prioritized_replay_alpha": 1.0}
    actors = [Actor(LocalReplayBuffer, **settings, seed=seed) for seed in range(2)]
    yield actors
    for actor in actors:
        actor.stop()


@pytest.mark.more
def test_replay_buffers_in_other_processes_store_draw_and_take_priorities(buffers: list[Actor]) -> None:
    store = of([SampleBatch({"obs": np.arange(4)}) for _ in range(30)]).for_each(StoreToReplayBuffer(actors=buffers))
    assert [batch.count for batch in store.take(99)] == [4] * 30
    added = [buffer.remote.apply(lambda own: own.num_added).result() for buffer in buffers]
    assert sum(added) == 120
    assert min(added) > 0

    sources: list[Any] = []

    def learn(batch: Any) -> Any:
        sources.append(LocalIterator.get_metrics().current_actor)
        return batch, {"default_policy": {"td_error": np.where(batch["obs"] == 3, 1.0, 0.0)}}

    replay = Replay(actors=buffers, num_async=2)
    trained = replay.for_each(learn).for_each(UpdatePriorities())
    trained.take(40)
    trained.close()
    assert {id(source) for source in sources} == {id(buffer) for buffer in buffers}
    for buffer in buffers:
        assert set(buffer.remote.replay().result()["obs"]) == {3}, "all rows were drawn, and only these have an error"


def test_replay_that_has_too_few_rows_is_passed_over(buffers: list[Actor]) -> None:
    for buffer in buffers:
        buffer.remote.apply(lambda own: setattr(own, "_starts", 1_000_000)).result()
    both = Concurrently([Replay(actors=buffers), of("abc")], mode="async")
    assert both.take(3) == ["a", "b", "c"]
    both.close()


def test_source_of_draws_of_buffers_of_this_process() -> None:
    both = [LocalReplayBuffer(learning_starts=1, replay_batch_size=2, seed=1) for _ in range(2)]
    for buffer in both:
        buffer.add_batch(SampleBatch({"obs": np.arange(4)}))
    sources = Replay(actors=both).zip_with_source_actor().take(4)
    assert [source for source, _ in sources] == both * 2


@pytest.mark.more
def test_remote_workers_are_actors() -> None:
    with WorkerSet(CountingPolicy, {"env": TEN_STEPS, "num_workers": 1, "rollout_fragment_length": 15}) as workers:
        counts = from_actors(workers.remote_workers()).for_each(lambda batch: batch.count).gather_async()
        assert counts.take(2) == [15, 15]
        counts.close()
        with pytest.raises(UsageError, match="takes all remote workers"):
            from_actors(workers.remote_workers() * 2)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"num_shards": 20, "buffer_size": 10}, "buffer_size=10 over num_shards=20"),
        ({"replay_batch_size": 0}, "replay_batch_size=0 must be above 0"),
        ({"prioritized_replay_alpha": -1}, "prioritized_replay_alpha=-1 and .* must be at least 0"),
    ],
)
def test_settings_of_a_replay_buffer(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        LocalReplayBuffer(**settings)


@pytest.mark.parametrize(
    ("statistics", "told"),
    [
        ({"loss": 1.0}, "Policy 'default_policy' has the statistics loss, and no td_error"),
        ({"td_error": np.zeros((3, 1))}, r"td_error of shape \[3, 1\] for 3 rows"),
        ({"td_error": np.zeros(2)}, r"td_error of shape \[2\] for 3 rows"),
    ],
)
def test_errors_that_are_no_priorities(statistics: dict[str, Any], told: str) -> None:
    batch = SampleBatch({"obs": np.arange(3), "batch_indexes": np.arange(3)}).as_multi_agent()
    with pytest.raises(ValueError, match=told):
        UpdatePriorities(LocalReplayBuffer())((batch, {"default_policy": statistics}))
