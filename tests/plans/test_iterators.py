"""Iterators of one consumer and of several shards: rows D15 to D19, D31 to D34 and D47, with literal sequences."""

from __future__ import annotations

import json
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from sf.plans import (
    NOT_READY,
    Concurrently,
    Dequeue,
    Enqueue,
    LocalIterator,
    NotReady,
    OperatorFailed,
    SharedMetrics,
    from_items,
    from_iterators,
    from_range,
)
from sf.plans.local_iterator import END

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())
of = LocalIterator.of


def test_d15_nothing_happens_before_next() -> None:
    seen: list[int] = []
    plan = of(range(3)).for_each(seen.append).filter(lambda _: True).batch(2)
    joined = Concurrently([plan, from_range(4).for_each(seen.append).gather_async()])
    assert seen == []
    next(joined)
    assert seen
    joined.close()


def test_d16_methods() -> None:
    case = ORACLES["D16"]["cases"][0]
    assert of(range(4)).combine(lambda x: [x, x]).take(99) == case["expected"]["items"]
    assert of(range(5)).batch(2).take(99) == [[0, 1], [2, 3], [4]]
    assert of(range(6)).filter(lambda x: x % 2 == 0).for_each(lambda x: x + 1).take(99) == [1, 3, 5]
    assert of([[1, 2], [3]]).flatten().take(99) == [1, 2, 3]
    assert of(range(9)).take(2) == [0, 1]
    assert of(range(9)).take(0) == []
    shuffled = of(range(40)).shuffle(8, seed=1).take(99)
    assert shuffled != list(range(40))
    assert sorted(shuffled) == list(range(40))
    assert of(range(3)).transform(lambda items: (2 * x for x in items)).take(99) == [0, 2, 4]
    assert of([5]).zip_with_source_actor().take(1) == [(None, 5)]


def test_d16_show_prints(capsys: pytest.CaptureFixture[str]) -> None:
    of(range(5)).show(2)
    assert capsys.readouterr().out == "0\n1\n"


def test_d16_callables_with_state() -> None:
    class Total:
        total = 0

        def __call__(self, x: int) -> int:
            self.total += x
            return self.total

    assert of([1, 2, 3]).for_each(Total()).take(9) == [1, 3, 6]


def test_d17_not_ready_passes_operators_and_functions_are_called_again() -> None:
    answers = iter([NOT_READY, NOT_READY, "done"])
    found = list(of([1]).for_each(lambda _: next(answers)))
    assert [isinstance(item, NotReady) for item in found] == [True, True, False]
    items = [NOT_READY, 1, NOT_READY, 2]
    chain = of(items).for_each(lambda x: x).filter(lambda x: x > 1).batch(1).flatten().shuffle(1)
    assert [item for item in chain if not isinstance(item, NotReady)] == [2]
    assert of(items).take(1) == [1]


def test_d17_enqueue_on_a_full_queue_does_not_block_the_plan() -> None:
    full: queue.Queue[int] = queue.Queue(1)
    together = Concurrently([of([1, 2]).for_each(Enqueue(full)), of("abc")], mode="async")
    found = [next(together) for _ in range(3)]
    assert sorted(map(str, found)) == ["1", "a", "b"]
    together.close()


def test_d18_duplicate() -> None:
    a, b = of(range(5)).duplicate(2)
    assert a.batch(2).union(b).take(99) == ORACLES["D18"]["cases"][0]["expected"]["items"]
    with pytest.raises(ValueError, match="Use 2 or more"):
        of([1]).duplicate(1)


def test_d18_child_that_is_ahead_waits_for_the_slowest_one() -> None:
    read: list[int] = []
    a, b = of(range(5)).for_each(noting(read)).duplicate(2)
    assert next(a) == 0
    assert isinstance(next(a), NotReady)
    assert read == [0], "nothing is read ahead"
    assert next(b) == 0
    assert next(a) == 1


def noting(items: list[int]) -> Callable[[int], int]:
    def note(x: int) -> int:
        items.append(x)
        return x

    return note


def counting(name: str) -> Callable[[int], int]:
    def add(x: int) -> int:
        counters = LocalIterator.get_metrics().counters
        counters[name] += x
        return counters[name]

    return add


def test_d19_metrics_of_a_chain_and_of_a_union() -> None:
    a, b = of([1, 2, 3, 4]).for_each(counting("a")), of([1, 2, 3, 4]).for_each(counting("b"))
    assert a.take(9) == b.take(9) == [1, 3, 6, 10]
    both = a.union(b, deterministic=True)
    assert dict(both.shared_metrics.get().counters) == {"a": 10, "b": 10}
    assert a.shared_metrics.get() is b.shared_metrics.get() is both.shared_metrics.get()
    both.take(9)
    assert dict(a.shared_metrics.get().counters) == {"a": 20, "b": 20}


def test_d19_metrics_outside_of_an_iterator() -> None:
    with pytest.raises(ValueError, match="outside of an iterator"):
        LocalIterator.get_metrics()


def test_exception_names_the_operator() -> None:
    def divides(x: int) -> float:
        return 1 / x

    with pytest.raises(OperatorFailed, match="operator divides raised ZeroDivisionError") as found:
        of([0]).for_each(divides).take(1)
    assert isinstance(found.value.__cause__, ZeroDivisionError)


def test_d47_gather_sync() -> None:
    numbers = from_range(4, num_shards=2).for_each(lambda x: 2 * x).for_each(lambda x: 2 * x)
    assert numbers.num_shards() == 2
    assert numbers.gather_sync().take(99) == ORACLES["D47"]["cases"][0]["expected"]["items"]
    assert from_items([1, 2, 3, 4], 2).batch_across_shards().take(9) == [[1, 2], [3, 4]]


def test_d47_gather_async_drops_finished_shards_and_sets_the_actor() -> None:
    actors: list[Any] = []

    def note(x: int) -> int:
        actors.append(LocalIterator.get_metrics().current_actor)
        return x

    numbers = from_iterators([range(5), range(10, 11)]).gather_async(num_async=2).for_each(note)
    assert sorted(numbers.take(99)) == [0, 1, 2, 3, 4, 10]
    assert sorted(actors) == ["shard 0"] * 5 + ["shard 1"]
    with pytest.raises(ValueError, match="Use 1 or more"):
        from_range(4).gather_async(num_async=0)


def test_d47_transforms_run_on_the_shards_at_the_same_time() -> None:
    threads: set[int] = set()
    barrier = threading.Barrier(2, timeout=20)

    def meet(x: int) -> int:
        barrier.wait()  # needs the other shard
        threads.add(threading.get_ident())
        return x

    assert sorted(from_range(6, 2).for_each(meet).gather_sync().take(99)) == list(range(6))
    assert len(threads) == 2
    assert threading.get_ident() not in threads


def test_d47_shards_filter_batch_flatten_and_repeat() -> None:
    even = from_range(8, 2).filter(lambda x: x % 2 == 0).batch(2)
    assert even.gather_sync().take(9) == [[0, 2], [4, 6]]
    assert even.flatten().take(9) == [0, 4, 2, 6]
    assert from_items([1, 2], 1, repeat=True).combine(lambda x: [x, -x]).take(6) == [1, -1, 2, -2, 1, -1]


def test_abandoned_iterator_ends_its_threads() -> None:
    before = set(threading.enumerate())
    numbers = from_items(range(100), 2, repeat=True).gather_async(2)
    next(numbers)
    own = set(threading.enumerate()) - before
    assert own
    numbers.close()
    for thread in own:
        thread.join(timeout=20)
    assert not [thread for thread in own if thread.is_alive()]


@pytest.mark.parametrize("case", ORACLES["D31"]["cases"], ids=lambda case: str(case["inputs"]))
def test_d31_round_robin(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    flows = [of(items) for items in inputs["children"]]
    if "error" in case["expected"]:
        with pytest.raises(ValueError, match=r"must not all be|2 flows at least"):
            Concurrently(flows, round_robin_weights=inputs["weights"])
        return
    found = Concurrently(flows, mode="round_robin", round_robin_weights=inputs["weights"])
    assert found.take(99) == case["expected"]["items"]


def test_d31_fractional_weights_keep_their_mean() -> None:
    endless = [LocalIterator(partial(forever, name), SharedMetrics()) for name in "ab"]
    both = Concurrently(endless, round_robin_weights=[1, 0.25])
    found = both.take(4000)
    assert 0.22 < found.count("b") / found.count("a") < 0.28


def forever(item: Any, _: float | None) -> Iterator[Any]:
    while True:
        yield item


def test_d31_d32_errors() -> None:
    two = [of([1]), of([2])]
    with pytest.raises(ValueError, match="2 flows at least"):
        Concurrently(two[:1])
    with pytest.raises(ValueError, match="must not all be"):
        Concurrently(two, round_robin_weights=["*", "*"])
    with pytest.raises(ValueError, match="no round_robin_weights"):
        Concurrently(two, mode="async", round_robin_weights=[1, 1])
    with pytest.raises(ValueError, match="must be 'round_robin' or 'async'"):
        Concurrently(two, mode="serial")
    with pytest.raises(ValueError, match="3 round_robin_weights for 2"):
        Concurrently(two, round_robin_weights=[1, 1, 1])


def slow(seconds: float, name: str) -> Callable[[int], str]:
    def sleep(_: int) -> str:
        time.sleep(seconds)
        return name

    return sleep


@pytest.mark.parametrize(("mode", "items"), [("round_robin", "axby"), ("async", "xayb")])
def test_only_round_robin_waits_for_the_flow_whose_turn_it_is(mode: str, items: str) -> None:
    def late(timeout_s: float | None) -> Iterator[Any]:
        for item in "ab":
            if timeout_s is not None:
                yield NOT_READY
            yield item

    assert Concurrently([LocalIterator(late, SharedMetrics()), of("xy")], mode=mode).take(4) == list(items)


def test_d32_slow_flow_does_not_hold_up_the_fast_one() -> None:
    fast = from_items(range(10), 1).for_each(slow(0.02, "fast")).gather_async()
    late = from_items(range(10), 1).for_each(slow(0.12, "slow")).gather_async()
    found = Concurrently([fast, late], mode="async").take(99)
    assert len(found) == 20
    assert found[-3:] == ["slow"] * 3


def test_d33_output_indexes() -> None:
    case = ORACLES["D33"]["cases"][0]
    seen: list[int] = []
    first, second = (of(items) for items in case["inputs"]["children"])
    flows = [first.for_each(noting(seen)), second]
    assert Concurrently(flows, output_indexes=case["inputs"]["output_indexes"]).take(99) == case["expected"]["items"]
    assert seen == case["inputs"]["children"][0], "the other flow is consumed too"
    with pytest.raises(AssertionError, match="there are 2 flows"):
        Concurrently([of([1]), of([2])], output_indexes=[2])


def test_d34_queue_between_two_flows() -> None:
    bridge: queue.Queue[int] = queue.Queue(8)
    assert of([1, 2, 3]).for_each(Enqueue(bridge)).take(9) == [1, 2, 3]
    assert Dequeue(bridge).take(3) == [1, 2, 3]
    with pytest.raises(RuntimeError, match="check of Dequeue failed"):
        next(Dequeue(bridge, check=lambda: False))


def test_closed_union_of_duplicates_closes_what_they_read() -> None:
    closed: list[bool] = []

    def source(_: float | None) -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append(True)

    a, b = LocalIterator(source, SharedMetrics()).duplicate(2)
    together = a.union(b)
    assert together.take(4) == [0, 0, 1, 1]
    together.close()
    assert closed == [True]


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="num_shards=0 works on nothing"):
        from_range(4, 0)
    with pytest.raises(ValueError, match=r"batch\(0\) makes no lists"):
        of([1]).batch(0)
    with pytest.raises(ValueError, match="weight -1 must be a number above 0"):
        Concurrently([of([1]), of([2])], round_robin_weights=[1, -1])
    with pytest.raises(ValueError, match="repeats has no items"):
        from_items([1], 2, repeat=True).gather_sync().take(4)


def test_d18_a_child_that_is_closed_is_not_waited_for_and_takes_nothing_with_it() -> None:
    read: list[int] = []
    a, b = of(range(3)).for_each(noting(read)).duplicate(2)
    assert next(a) == 0
    a.close()
    assert list(b) == [0, 1, 2]
    assert read == [0, 1, 2], "nothing is read twice"


def test_d18_a_child_that_is_closed_before_its_first_item_is_not_waited_for() -> None:
    a, b, c = of(range(3)).duplicate(3)
    a.for_each(str).close()
    c.union(of([7])).close()
    assert list(b) == [0, 1, 2]
    assert [list(child) for child in (a, c, b)] == [[], [], []], "a closed one has ended"
    read: list[int] = []
    a, b = of(range(3)).for_each(noting(read)).duplicate(2)
    assert (next(a), next(b)) == (0, 0)
    a.close()
    assert list(a) == []
    assert next(b) == 1
    b.close()
    assert list(b) == list(a) == []
    assert read == [0, 1], "and takes nothing from its source again"


def test_d18_a_source_that_has_ended_does_not_begin_again() -> None:
    begun: list[bool] = []

    def source(_: float | None) -> Iterator[int]:
        begun.append(True)
        yield from ()

    a, b, c = LocalIterator(source, SharedMetrics()).duplicate(3)
    assert (list(a), list(b), list(c)) == ([], [], [])
    assert begun == [True]


def test_an_iterator_that_was_pickled_ends() -> None:
    iterator = of([1, 2, 3]).for_each(str).filter(bool).batch(2)
    assert list(pickle.loads(cloudpickle.dumps(iterator))) == [["1", "2"], ["3"]]
    assert pickle.loads(pickle.dumps(END)) is END


class Slow:
    """A source that is ready after some looks, and waits where it is given the time."""

    def __init__(self, items: str, looks: int) -> None:
        self.items, self.looks = items, looks

    def __call__(self, timeout_s: float | None) -> Iterator[Any]:
        for item in self.items:
            if timeout_s is not None:
                for _ in range(self.looks):
                    yield NOT_READY
            yield item


def test_children_with_weights_are_waited_for() -> None:
    slow, fast = LocalIterator(Slow("ab", 3), SharedMetrics()), of([1, 2, 3, 4, 5, 6])
    assert slow.union(fast, round_robin_weights=[1, 2]).take(99) == ["a", 1, 2, "b", 3, 4, 5, 6]
    slow, fast = LocalIterator(Slow("ab", 3), SharedMetrics()), of([1, 2, 3])
    assert slow.union(fast).take(3) == [1, 2, 3], "without weights those that are ready come first"
    slow, fast = LocalIterator(Slow("ab", 1), SharedMetrics()), of([1, 2])
    assert slow.union(fast, round_robin_weights=["*", 1]).take(99) == [1, "a", 2, "b"], "of '*' what is ready"


@pytest.mark.parametrize("wrong", [[], None, "queue"])
def test_d17_d34_what_is_no_queue_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"Enqueue takes a queue\.Queue, but got"):
        Enqueue(wrong)
    with pytest.raises(ValueError, match=r"Dequeue takes a queue\.Queue, but got"):
        Dequeue(wrong)
