"""Parallel iterators over items, objects of this process, actors and remote workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from sf.errors import UsageError
from sf.plans.actors import Actor
from sf.plans.local_iterator import END, Transform, transformed
from sf.plans.parallel_iterator import ParallelIterator
from sf.plans.worker import RemoteWorker
from sf.plans.worker_set import WorkerShards


class ParallelIteratorWorker:
    """A base for actors of `from_actors`: gives its items one by one."""

    def __init__(self, item_generator: Any, repeat: bool = False) -> None:
        """Begins with the first item.

        Args:
            item_generator: items, or a function that returns them.
            repeat: whether they begin anew when there are no more.
        """
        self._item_generator, self._repeat = item_generator, repeat
        self._items: Iterator[Any] = iter(())

    def par_iter_init(self, transforms: Sequence[Transform]) -> None:
        """Begins anew, with transforms of an iterator to an iterator."""
        self._items = transformed(self._all_items(), transforms)

    def par_iter_next(self) -> Any:
        """The next item; raises `StopIteration` where there are no more."""
        return next(self._items)

    def _all_items(self) -> Iterator[Any]:
        has_some = True
        while has_some:
            has_some = False
            for item in self._item_generator() if callable(self._item_generator) else self._item_generator:
                has_some = self._repeat
                yield item
        if self._repeat:
            raise ValueError("A shard that repeats has no items. Use fewer shards, or a list and no generator.")


class ActorShards:
    """Actors as the shards of a parallel iterator; objects of this process work in a thread each."""

    def __init__(self, actors: Sequence[Any], names: Sequence[Any] | None = None) -> None:
        """Calls nothing yet; items come from these names, or else from the actors."""
        self._workers, self.actors = actors, names or actors
        self._threads: list[ThreadPoolExecutor] = []
        self._asked: list[list[Future[Any]]] = []

    def begin(self, transforms: Sequence[Transform]) -> None:
        """See `Shards`."""
        self.end()
        for thread in self._threads:
            thread.shutdown()  # a call of before may still be under way
        self._threads = [ThreadPoolExecutor(1) for _ in self._workers]
        self._asked = [[] for _ in self._workers]
        for begun in [self._call(shard, "par_iter_init", list(transforms)) for shard in range(len(self._workers))]:
            begun.result()

    def ask(self, shard: int) -> None:
        """See `Shards`."""
        self._asked[shard].append(self._call(shard, "par_iter_next"))

    def wait(self, shards: set[int], timeout_s: float | None = None) -> list[int]:
        """See `Shards`."""
        first = {self._asked[shard][0]: shard for shard in sorted(shards) if self._asked[shard]}
        done, _ = wait(first, timeout_s, FIRST_COMPLETED)
        return [shard for future, shard in first.items() if future in done]

    def take(self, shard: int) -> Any:
        """See `Shards`."""
        return self._asked[shard].pop(0).result()

    def end(self) -> None:
        """See `Shards`."""
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)

    def _call(self, shard: int, method: str, *arguments: Any) -> Future[Any]:
        actor = self._workers[shard]
        if isinstance(actor, Actor):
            return actor.call(method, *arguments)
        return self._threads[shard].submit(_with_end, getattr(actor, method), *arguments)


def _with_end(method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except StopIteration:
        return END


def from_actors(actors: Sequence[Any], name: str | None = None) -> ParallelIterator:
    """The items of actors, which work at the same time.

    Args:
        actors: with the methods of `ParallelIteratorWorker`: each is an `Actor`, or an object of this process, which
            works in a thread of its own. Or all remote workers of a plan, whose items are the batches that they sample.
        name: ignored.

    Raises:
        UsageError: there are none, or only some of the remote workers.
    """
    if not actors:
        raise UsageError("from_actors needs one actor at least.")
    if isinstance(actors[0], RemoteWorker):
        if list(actors) != actors[0].workers.remote_workers():
            raise UsageError(
                "from_actors takes all remote workers of a plan, in their order: workers.remote_workers()."
            )
        return ParallelIterator(WorkerShards(actors[0].workers))
    return ParallelIterator(ActorShards(actors))


def from_items(items: Sequence[Any], num_shards: int = 2, repeat: bool = False) -> ParallelIterator:
    """Items dealt to shards in turn, over and over again if they repeat."""
    _expect_shards(num_shards)
    return from_iterators([items[shard::num_shards] for shard in range(num_shards)], repeat)


def from_range(n: int, num_shards: int = 2, repeat: bool = False) -> ParallelIterator:
    """The numbers from 0 to n - 1; each shard has a part of them."""
    _expect_shards(num_shards)
    each = n // num_shards
    edges = [shard * each for shard in range(num_shards)] + [n]
    return from_iterators([range(edges[shard], edges[shard + 1]) for shard in range(num_shards)], repeat)


def from_iterators(generators: Sequence[Iterable[Any]], repeat: bool = False) -> ParallelIterator:
    """One shard for each."""
    workers = [ParallelIteratorWorker(items, repeat) for items in generators]
    return ParallelIterator(ActorShards(workers, [f"shard {index}" for index in range(len(workers))]))


def _expect_shards(num_shards: int) -> None:
    if num_shards < 1:
        raise ValueError(f"num_shards={num_shards} works on nothing. Use 1 or more.")
