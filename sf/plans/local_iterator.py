"""A chain of operators that one consumer reads (rows D15 to D19)."""

from __future__ import annotations

import collections
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sf.errors import SfError
from sf.plans.metrics import MetricsContext, SharedMetrics

Weight = float | str
MOST_AT_ONCE = 100
"""Items of a flow of weight ``"*"`` in one turn."""
LOOK_AGAIN_S = 5e-4
"""Sleep of a union of which no child has an item."""


class NotReady:
    """The item that says "nothing yet": operators pass it on, and a union goes on with its next child."""

    def __repr__(self) -> str:
        return "NOT_READY"


NOT_READY = NotReady()

Source = Callable[[float | None], Iterable[Any]]
"""Makes the items anew. With a timeout in seconds it gives `NOT_READY` instead of waiting longer."""
Transform = Callable[[Iterator[Any]], Iterator[Any]]
Each = tuple[Callable[[Any], Iterable[Any]], Callable[[], Iterable[Any]]]
"""Functions from an item to items, and to those that come after the last one."""


class OperatorFailed(SfError):
    """An exception in a function of a plan; its cause is that exception."""


class LocalIterator:
    """A source and the transforms of its items; nothing happens before the first `next`."""

    _current = threading.local()

    def __init__(
        self,
        source: Source,
        shared_metrics: SharedMetrics,
        transforms: Sequence[Transform] = (),
        timeout_s: float | None = None,
        name: str = "LocalIterator",
        on_close: Callable[[], Any] | None = None,
    ) -> None:
        """Builds nothing yet.

        Args:
            source: of the items.
            shared_metrics: of the chain.
            transforms: of an iterator to an iterator, applied one after the other.
            timeout_s: how long to wait for an item; None for as long as it takes.
            name: for messages.
            on_close: called by each `close`, also before the first item.
        """
        self.source, self.shared_metrics, self.transforms = source, shared_metrics, tuple(transforms)
        self.timeout_s, self.name, self._on_close = timeout_s, name, on_close
        self._built: Iterator[Any] | None = None

    @classmethod
    def of(cls, items: Iterable[Any], name: str = "items") -> LocalIterator:
        """Over items that are there."""
        return cls(lambda _: items, SharedMetrics(), name=name)

    @staticmethod
    def get_metrics() -> MetricsContext:
        """The context of the chain that is being read.

        Raises:
            ValueError: none is.
        """
        context = getattr(LocalIterator._current, "metrics", None)
        if context is None:
            raise ValueError("There are no metrics outside of an iterator. Read them in a function of for_each.")
        metrics: MetricsContext = context.get()
        return metrics

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._built is None:
            self._built = transformed(self.source(self.timeout_s), self.transforms)
        return next(self._built)

    def close(self) -> None:
        """Stops reading: generators end, and give back what they hold."""
        built, self._built = self._built, None
        if built is not None and hasattr(built, "close"):
            built.close()
        if self._on_close is not None:
            self._on_close()

    def __repr__(self) -> str:
        return self.name

    def transform(self, fn: Transform, name: str = "transform") -> LocalIterator:
        """With another transform, of an iterator to an iterator."""
        transforms, name = (*self.transforms, fn), f"{self.name}.{name}()"
        return LocalIterator(self.source, self.shared_metrics, transforms, self.timeout_s, name, self._on_close)

    def for_each(self, fn: Callable[[Any], Any]) -> LocalIterator:
        """Applies a function to each item; one that returns `NOT_READY` is called again with the same item."""

        def apply(items: Iterator[Any]) -> Iterator[Any]:
            call, on_fetch_start = self._call, getattr(fn, "on_fetch_start", None)
            with _closing(items):
                while True:
                    if on_fetch_start is not None:
                        call(on_fetch_start)
                    item = next(items, END)
                    if item is END:
                        return
                    if item.__class__ is NotReady:
                        yield item
                        continue
                    while (result := call(fn, item)).__class__ is NotReady:
                        yield result
                    yield result

        return self.transform(apply, f"for_each({operator_name(fn)})")

    def filter(self, fn: Callable[[Any], bool]) -> LocalIterator:
        """Keeps the items for which the function is true."""

        def kept(item: Any) -> Iterable[Any]:
            return (item,) if self._call(fn, item) else ()

        return self._each(lambda: (kept, tuple), f"filter({operator_name(fn)})")

    def batch(self, n: int) -> LocalIterator:
        """Lists of n items; the last one may be shorter.

        Raises:
            ValueError: n is below 1.
        """
        if n < 1:
            raise ValueError(f"batch({n}) makes no lists. Use 1 or more.")

        def begin() -> Each:
            batch: list[Any] = []

            def full(item: Any) -> Iterable[Any]:
                batch.append(item)
                return rest() if len(batch) >= n else ()

            def rest() -> Iterable[Any]:
                whole = batch[:]
                batch.clear()
                return [whole] if whole else ()

            return full, rest

        return self._each(begin, f"batch({n})")

    def flatten(self) -> LocalIterator:
        """The items of the items."""
        return self._each(lambda: (iter, tuple), "flatten")

    def combine(self, fn: Callable[[Any], Iterable[Any]]) -> LocalIterator:
        """`for_each`, then `flatten`."""
        return self.for_each(fn).flatten()

    def shuffle(self, buffer_size: int, seed: int | None = None) -> LocalIterator:
        """Each item is drawn from the next `buffer_size` ones."""

        def begin() -> Each:
            draws, buffer = random.Random(seed), list[Any]()

            def drawn(item: Any) -> Iterable[Any]:
                buffer.append(item)
                return [buffer.pop(draws.randrange(len(buffer)))] if len(buffer) >= buffer_size else ()

            return drawn, lambda: (buffer.pop(draws.randrange(left)) for left in range(len(buffer), 0, -1))

        return self._each(begin, f"shuffle({buffer_size})")

    def _each(self, begin: Callable[[], Each], name: str) -> LocalIterator:
        """The items that functions make of those that are ready, and of the end; both are made anew by `begin`."""

        def apply(items: Iterator[Any]) -> Iterator[Any]:
            make, rest = begin()
            with _closing(items):
                for item in items:
                    if isinstance(item, NotReady):
                        yield item
                    else:
                        yield from make(item)
                yield from rest()

        return self.transform(apply, name)

    def zip_with_source_actor(self) -> LocalIterator:
        """Pairs of the worker that an item comes from, and the item.

        An operator further down the chain sees the worker of a later item otherwise, where items are kept back.
        """

        def with_actor(item: Any) -> tuple[Any, Any]:
            return LocalIterator.get_metrics().current_actor, item

        return self.for_each(with_actor)

    def take(self, n: int) -> list[Any]:
        """The first n items that are ready, or fewer where there are no more."""
        taken: list[Any] = []
        for item in self if n > 0 else ():
            if not isinstance(item, NotReady):
                taken.append(item)
            if len(taken) >= n:
                break
        return taken

    def show(self, n: int = 20) -> None:
        """Prints the first n items."""
        for item in self.take(n):
            print(item)

    def duplicate(self, n: int) -> list[LocalIterator]:
        """N iterators over the same items.

        One that is ahead gives `NOT_READY` until the slowest one has caught up, so that one item is kept at most.

        Raises:
            ValueError: n is below 2.
        """
        if n < 2:
            raise ValueError(f"duplicate({n}) makes no copies. Use 2 or more.")
        queues: dict[int, collections.deque[Any]] = {index: collections.deque() for index in range(n)}
        """Items of the children that can still be read; the last child that ends closes this iterator."""
        has_ended = False

        def read(index: int) -> Iterator[Any]:
            nonlocal has_ended
            while (own := queues.get(index)) is not None:
                if len(own) < max(map(len, queues.values())):
                    yield NOT_READY
                    continue
                if not own:
                    item = END if has_ended else next(self, END)
                    if item is END:
                        has_ended = True
                        return
                    if isinstance(item, NotReady):
                        yield item
                        continue
                    for queue in queues.values():
                        queue.append(item)
                yield own.popleft()

        def child(index: int) -> LocalIterator:
            def end() -> None:
                if queues.pop(index, None) is not None and not queues:
                    self.close()

            def source(timeout_s: float | None) -> Iterator[Any]:
                self.timeout_s = timeout_s if self._built is None else self.timeout_s
                try:
                    yield from read(index)
                finally:
                    end()

            return LocalIterator(source, self.shared_metrics, name=f"{self.name}.duplicate[{index}]", on_close=end)

        return [child(index) for index in range(n)]

    def union(
        self,
        *others: LocalIterator,
        deterministic: bool = False,
        round_robin_weights: Sequence[Weight] | None = None,
    ) -> LocalIterator:
        """One iterator over the items of several, in turns; from now on they share their metrics.

        Args:
            others: the other iterators.
            deterministic: waits for the item of the one whose turn it is. Else that one is passed over if it has none,
                unless there are weights.
            round_robin_weights: items of each one per turn, which are waited for. A fraction is rounded at random, and
                ``"*"`` takes all that are ready, 100 at most.

        Raises:
            ValueError: there are more or fewer weights than iterators.
        """
        parents = [self, *others]
        for weight in round_robin_weights or ():
            if weight != "*" and not (isinstance(weight, (int, float)) and weight > 0):
                raise ValueError(f"The round_robin_weight {weight!r} must be a number above 0, or '*'.")
        weights = [1] * len(parents) if round_robin_weights is None else list(round_robin_weights)
        if len(weights) != len(parents):
            raise ValueError(f"{len(weights)} round_robin_weights for {len(parents)} iterators. Give one for each.")
        metrics = SharedMetrics([parent.shared_metrics for parent in parents])
        is_waited_for = deterministic or round_robin_weights is not None
        timeouts = [None if is_waited_for and weight != "*" else 0.0 for weight in weights]
        children = [
            LocalIterator(parent.source, metrics, parent.transforms, timeout_s, parent.name, parent._on_close)
            for parent, timeout_s in zip(parents, timeouts, strict=True)
        ]

        def end() -> None:
            for each in children:
                each.close()

        def source(timeout_s: float | None) -> Iterator[Any]:
            active = list(zip(weights, children, strict=True))
            try:
                while active:
                    has_waited = True
                    for weight, each in list(active):
                        for _ in range(MOST_AT_ONCE if weight == "*" else _rounded_at_random(float(weight))):
                            item = next(each, END)
                            if item is END:
                                active.remove((weight, each))
                            elif not isinstance(item, NotReady):
                                has_waited = False
                                yield item
                                continue
                            break
                    if has_waited and active:
                        if timeout_s is not None:
                            yield NOT_READY
                        elif not deterministic:
                            time.sleep(LOOK_AGAIN_S)
            finally:
                end()

        names = ", ".join(parent.name for parent in parents)
        return LocalIterator(source, metrics, name=f"union({names})", on_close=end)

    def _call(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function of the plan, which finds the metrics of this chain.

        Raises:
            OperatorFailed: it raised an exception.
        """
        current = LocalIterator._current
        before, current.metrics = getattr(current, "metrics", None), self.shared_metrics
        try:
            return fn(*arguments)
        except SfError:
            raise
        except Exception as error:
            got_nothing = any(argument is None for argument in arguments)
            if type(fn).__module__.startswith(__package__) and not got_nothing:
                raise  # says itself what is wrong
            hint = " It was given None: does the operator before it return its item?" if got_nothing else ""
            raise OperatorFailed(
                f"The operator {operator_name(fn)} raised {type(error).__name__}: {error}.{hint}"
            ) from error
        finally:
            current.metrics = before


class _End:
    """The type of `END`, of which there is one object in a process, also after pickling."""

    def __reduce__(self) -> str:
        return "END"


END = _End()
"""Instead of an item: there are no more."""


def transformed(items: Iterable[Any], transforms: Iterable[Transform]) -> Iterator[Any]:
    """Items after transforms of an iterator to an iterator, one after the other."""
    iterator = iter(items)
    for transform in transforms:
        iterator = transform(iterator)
    return iterator


def operator_name(fn: Any) -> str:
    """The name of a function, or of the class of an object that is called like one."""
    name: str = getattr(fn, "__name__", type(fn).__name__)
    return name


def _rounded_at_random(number: float) -> int:
    """A whole number beside it, with the number as its mean."""
    whole = int(number)
    return whole + (random.random() < number - whole)


@contextmanager
def _closing(items: Iterator[Any]) -> Iterator[None]:
    """Closes a generator when the one that reads it is closed."""
    try:
        yield
    finally:
        if hasattr(items, "close"):
            items.close()
