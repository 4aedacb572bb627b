"""Each hand-over in shared memory, recorded from its code, under every order that a weak processor may choose.

Two programs are run in turns, and their accesses are recorded. Then `tests.helpers.weak_memory` goes through all orders
in which a processor may carry them out. Wherever the words are as they were, the data must be so too.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest

from sf.shared import episodes, exchange, leaving, order, records, requests, slots, weights
from sf.tools.vector import worker as vector_worker
from sf.tools.vector import workers as vector_workers
from tests.helpers.recorded_hand_overs import (
    READER,
    WRITER,
    OneEnv,
    Recorded,
    record_episodes,
    record_exchange,
    record_leaving,
    record_records,
    record_requests,
    record_slots,
    record_vector_env,
    record_weights,
)
from tests.helpers.weak_memory import Event, outcomes

HAND_OVERS: dict[str, tuple[Callable[[Recorded], None], tuple[ModuleType, ...]]] = {
    "weights": (record_weights, (weights,)),
    "records": (record_records, (records,)),
    "episodes": (record_episodes, (episodes,)),
    "leaving": (record_leaving, (leaving,)),
    "requests": (record_requests, (requests,)),
    "slots": (record_slots, (slots,)),
    "exchange": (record_exchange, (exchange,)),
    "vector env": (record_vector_env, (vector_workers, vector_worker)),
}
OPERATIONS = {
    "weights": {(WRITER, "withdraw"), (WRITER, "publish"), (READER, "observe"), (READER, "recheck")},
    "records": {(WRITER, "withdraw"), (WRITER, "publish"), (READER, "observe"), (READER, "recheck")},
    "episodes": {(WRITER, "publish"), (READER, "observe")},
    "leaving": {(WRITER, "publish"), (READER, "observe")},
} | {
    name: {(process, operation) for process in (WRITER, READER) for operation in ("publish", "observe")}
    for name in ("requests", "slots", "exchange", "vector env")
}
"""The operations of both processes, each of which has a fence."""
SPARE = {("slots", WRITER, "publish")}
"""Before a worker publishes a slot it checks its state, and so there is the fence of that look as well."""


@pytest.fixture(params=HAND_OVERS)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """A hand-over as its code does it."""
    record, modules = HAND_OVERS[name]
    monkeypatch.setattr(vector_worker, "HostedEnvs", OneEnv)
    made = Recorded(monkeypatch, *modules)
    record(made)
    return made


def test_no_processor_can_tear_a_hand_over(name: str, recorded: Recorded) -> None:
    assert recorded.fences == OPERATIONS[name]
    assert recorded.is_right()


def test_each_fence_is_needed(name: str, recorded: Recorded) -> None:
    for process, operation in OPERATIONS[name]:
        assert recorded.is_right(without=(process, operation)) == ((name, process, operation) in SPARE), operation


@pytest.mark.parametrize("order_of_writer", ["word first", "no fence", "fenced"])
@pytest.mark.parametrize("order_of_reader", ["data first", "no fence", "fenced"])
def test_the_model_finds_a_planted_mistake(order_of_writer: str, order_of_reader: str) -> None:
    """Message passing, the smallest hand-over: a number, and a word that says it is there."""
    number, word = ("number", 0), ("word", 0)
    store, load = (
        [Event("store", number, 5), Event("store", word, 1)],
        [Event("load", word, 1), Event("load", number, 5)],
    )
    fence = Event("fence", ("", 0))
    writer = {"word first": [store[1], fence, store[0]], "no fence": store, "fenced": [store[0], fence, store[1]]}
    reader = {"data first": [load[1], fence, load[0]], "no fence": load, "fenced": [load[0], fence, load[1]]}
    traces = writer[order_of_writer], reader[order_of_reader]
    found = outcomes(traces, {number: 0, word: 0}, {"word"})
    assert ((), (5.0,)) in found
    is_right = order_of_writer == order_of_reader == "fenced"
    assert found == {((), (5.0,))} | (set() if is_right else {((), (0.0,))})


def test_the_model_keeps_the_order_of_one_place() -> None:
    """A second look at a word is never older than the first one."""
    word = ("word", 0)
    writer, reader = [Event("store", word, 1), Event("store", word, 2)], [Event("load", word), Event("load", word)]
    pairs = {own for _, own in outcomes((writer, reader), {word: 0}, ())}
    assert pairs == {(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)}


def test_what_was_observed_does_not_change_after_the_fence() -> None:
    words = np.zeros(3, np.int64)
    operations = order.fenced(lambda: words.fill(9))
    assert operations.observe(words, slice(None)).tolist() == [0, 0, 0]
    assert operations.observe(words.data, 1) == 9


@pytest.mark.parametrize("make", [order.compiled_fence, order.semaphore_fence])
def test_fences_can_be_called_from_several_threads(make: Callable[[], order.Fence]) -> None:
    fence = make()

    def call() -> bool:
        for _ in range(20_000):
            fence()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert [future.result(20) for future in [pool.submit(call) for _ in range(4)]] == [True] * 4


@pytest.mark.parametrize(
    ("machine", "compiler", "described"),
    [("x86_64", "cc", "stores in order"), ("aarch64", "cc", "fences"), ("aarch64", "none", "fences by a semaphore")],
)
def test_the_processor_decides(machine: str, compiler: str, described: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setenv("CC", compiler)
    operations, found = order._chosen()
    assert found == described
    assert (operations is order.PLAIN) == (machine == "x86_64")
    words = np.zeros(2, np.int64)
    operations.publish(words, 1, 4)
    operations.withdraw(words, 0, 3)
    assert (operations.observe(words, 0), operations.recheck(words, 1)) == (3, 4)
