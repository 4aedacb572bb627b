"""Several shards that work at the same time, and the ways to gather their items (row D47)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from sf.plans.local_iterator import END, NOT_READY, LocalIterator, Transform
from sf.plans.metrics import SharedMetrics


class Shards(Protocol):
    """Sources that work at the same time, each asked for one item after the other."""

    @property
    def actors(self) -> Sequence[Any]:
        """What `current_actor` is for the items of each."""

    def begin(self, transforms: Sequence[Transform]) -> None:
        """Gets ready; nothing that was asked for before is given any more. Transforms run where the shard works."""

    def ask(self, shard: int) -> None:
        """Has a shard make one item more."""

    def wait(self, shards: set[int], timeout_s: float | None = None) -> list[int]:
        """Those that have an item, the first one first; waits for one, or for so many seconds."""

    def take(self, shard: int) -> Any:
        """Its oldest item; `END` where there are no more."""

    def end(self) -> None:
        """Nothing more is asked for."""


class ParallelIterator:
    """Shards and the transforms that run on them; nothing happens before a gathered iterator is read."""

    def __init__(self, shards: Shards, transforms: Sequence[Callable[[LocalIterator], LocalIterator]] = ()) -> None:
        """Asks for nothing yet.

        Args:
            shards: where items come from.
            transforms: of the iterator of one shard, as methods of `LocalIterator` are.
        """
        self.shards, self.transforms = shards, tuple(transforms)

    def num_shards(self) -> int:
        """How many work at the same time."""
        return len(self.shards.actors)

    def for_each(self, fn: Callable[[Any], Any]) -> ParallelIterator:
        """Applies a function to each item, on its shard."""
        return self._with(lambda items: items.for_each(fn))

    def filter(self, fn: Callable[[Any], bool]) -> ParallelIterator:
        """Keeps the items for which the function is true, on their shard."""
        return self._with(lambda items: items.filter(fn))

    def batch(self, n: int) -> ParallelIterator:
        """Lists of n items of one shard."""
        return self._with(lambda items: items.batch(n))

    def flatten(self) -> ParallelIterator:
        """The items of the items."""
        return self._with(lambda items: items.flatten())

    def combine(self, fn: Callable[[Any], Iterable[Any]]) -> ParallelIterator:
        """`for_each`, then `flatten`."""
        return self.for_each(fn).flatten()

    def gather_sync(self) -> LocalIterator:
        """One item of each shard in turn; waits for all of them before each round."""
        return self.batch_across_shards().flatten()

    def batch_across_shards(self) -> LocalIterator:
        """Lists with one item of each shard that has some left."""
        metrics = SharedMetrics()

        def source(timeout_s: float | None) -> Iterator[Any]:
            active = list(range(self.num_shards()))
            with _begun(self.shards, self._as_one()):
                while active:
                    for shard in active:
                        self.shards.ask(shard)
                    items = []
                    for shard in list(active):
                        while not self.shards.wait({shard}, timeout_s):
                            yield NOT_READY
                        item = self.shards.take(shard)
                        if item is END:
                            active.remove(shard)
                        else:
                            items.append(item)
                    if items:
                        yield items

        return LocalIterator(source, metrics, name="batch_across_shards")

    def gather_async(self, num_async: int = 1, ask_before: bool = True) -> LocalIterator:
        """Items as they come, with `num_async` of each shard under way; sets ``current_actor``.

        Args:
            num_async: see above.
            ask_before: whether a shard works on its next item while the consumer has the present one. Else it is asked
                when the consumer comes back, and sees everything that was done with the item.

        Raises:
            ValueError: `num_async` is below 1.
        """
        if num_async < 1:
            raise ValueError(f"gather_async(num_async={num_async}) asks for nothing. Use 1 or more.")
        metrics = SharedMetrics()

        def source(timeout_s: float | None) -> Iterator[Any]:
            active = set(range(self.num_shards()))
            with _begun(self.shards, self._as_one()):
                for _ in range(num_async):
                    for shard in sorted(active):
                        self.shards.ask(shard)
                while active:
                    ready = self.shards.wait(active, timeout_s)
                    if not ready:
                        yield NOT_READY
                    for shard in ready:
                        item = self.shards.take(shard)
                        if item is END:
                            active.discard(shard)
                            continue
                        if ask_before:
                            self.shards.ask(shard)
                        metrics.get().current_actor = self.shards.actors[shard]
                        yield item
                        if not ask_before:
                            self.shards.ask(shard)

        return LocalIterator(source, metrics, name=f"gather_async({num_async})")

    def take(self, n: int) -> list[Any]:
        """The first n items, gathered in turn."""
        gathered = self.gather_sync()
        taken = gathered.take(n)
        gathered.close()
        return taken

    def _with(self, transform: Callable[[LocalIterator], LocalIterator]) -> ParallelIterator:
        return ParallelIterator(self.shards, (*self.transforms, transform))

    def _as_one(self) -> Sequence[Transform]:
        """The transforms as those of an iterator to an iterator."""
        chain = LocalIterator.of(())
        for transform in self.transforms:
            chain = transform(chain)
        return chain.transforms


@contextmanager
def _begun(shards: Shards, transforms: Sequence[Transform]) -> Iterator[None]:
    """Between `begin` and `end`."""
    shards.begin(transforms)
    try:
        yield
    finally:
        shards.end()
