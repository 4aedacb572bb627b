"""The programs of each hand-over in shared memory, run in turns while their accesses are recorded."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sf.inference.worker import InferenceWorker
from sf.shared import episodes, exchange, leaving, order, records, requests, slots, weights
from sf.shared.arena import Arena, Field
from sf.shared.leaving import Heard
from sf.shared.slot_fields import slot_memory
from sf.shared.slots import SlotState
from sf.shared.topology import Topology
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from sf.tools.vector import worker as vector_worker
from sf.tools.vector.workers import VectorWorkers
from tests.helpers.weak_memory import Event, Recorder, outcomes, recorded_outcome

INFO = EnvInfo("Test-v0", 1, {"obs": LeafSpec((1,), "float32")}, ActionSpec.discrete(2))
TOPOLOGY = Topology(
    num_workers=1, groups_per_worker=1, envs_per_group=1, agents_per_env=1, rollout=2, slots_per_group=1,
    num_policies=1, inference_per_policy=1,
)  # fmt: skip
WRITER, READER = 0, 1


class Recorded:
    """A hand-over that is run, and the names of its words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Has the operations of these modules record their fences."""
        self.recorder = Recorder()
        self.watch = self.recorder.watch
        self.words: set[str] = set()
        named = [getattr(order.fenced(partial(self.recorder.fence, name)), name) for name in order.Operations._fields]
        operations = order.Operations(*named)
        for module in modules:
            for name, operation in {**operations._asdict(), "OPERATIONS": operations}.items():
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, operation)

    def word(self, name: str, array: Any) -> Any:
        """Watches an array of words."""
        self.words.add(name)
        return self.watch(name, array)

    def runs(self, process: int, program: Callable[..., Any], *arguments: Any) -> Any:
        """Records the accesses of a program as those of one process."""
        self.recorder.running = process
        return program(*arguments)

    @property
    def fences(self) -> set[tuple[int, str]]:
        """By process, the operations whose fences it has."""
        traces = enumerate(self.recorder.traces)
        return {(process, event.place[0]) for process, trace in traces for event in trace if event.kind == "fence"}

    def is_right(self, without: tuple[int, str] | None = None) -> bool:
        """Whether all loads of data give what they gave, in all orders.

        Args:
            without: a process, and the operation that has no fence there.
        """
        traces = self.recorder.shared_traces()
        if without is not None:
            process, operation = without
            traces[process][:] = [event for event in traces[process] if event != Event("fence", (operation, 0))]
        return outcomes(traces, self.recorder.initial, self.words) == {recorded_outcome(traces, self.words)}


def record_weights(recorded: Recorded) -> None:
    """The reader takes version 0; then the writer comes back to that buffer."""
    published = weights.PublishedWeights()
    published._header = recorded.word("header", np.zeros(3, np.int64))
    published._buffers = [recorded.watch(f"buffer {i}", np.zeros(2, np.float32)) for i in range(2)]  # type: ignore[assignment]

    def publish(version: int) -> None:
        def write(buffer: Any) -> None:
            buffer[:] = version + 10

        published.publish(version, write)

    def take(buffer: Any) -> None:
        buffer[:]

    recorded.runs(WRITER, publish, 0)
    assert recorded.runs(READER, published.read, take) == 0
    for version in (1, 2):
        recorded.runs(WRITER, publish, version)


def record_records(recorded: Recorded) -> None:
    """The reader takes a copy between two of the writer's."""
    fields = {"records/test": Field((1, 2), "float64"), "records/test/sequence": Field((1,), "int64")}
    fields |= {"records/test/progress": Field((1,), "int64"), records.FIRST_STEP_S: Field((1,), "float64", math.nan)}
    record = records.Record(Arena(fields), "test", 0, ("steps", "episodes"))
    record._sequence = recorded.word("sequence", np.zeros(1, np.int64))
    record._shared = recorded.watch("counters", np.zeros(2))

    def publish(value: float) -> None:
        record.local[0] = record.local[1] = value
        record.publish()

    recorded.runs(WRITER, publish, 1)
    assert recorded.runs(READER, record.read) == {"steps": 1, "episodes": 1}
    recorded.runs(WRITER, publish, 2)


def record_episodes(recorded: Recorded) -> None:
    ring = episodes.EpisodeRing(Arena(records.record_fields(1, 1, 1)), 0)
    watched: Any = recorded.watch("episodes", ring._episodes[:1].copy())
    ring._episodes = watched
    ring._count = recorded.word("count", np.zeros(1, np.int64))
    recorded.runs(WRITER, ring.append, episodes.Episode(0, 3.0, 5, 3.0))
    (episode,) = recorded.runs(READER, ring.new_episodes)
    assert episode.length == 5


def record_leaving(recorded: Recorded) -> None:
    told = leaving.Leaving(Arena(leaving.leaving_fields()))
    words = recorded.watch("sender", np.zeros(3, np.int64)), recorded.word("reason", np.zeros(3, np.int64))

    class Words:
        def __getitem__(self, index: int) -> Any:
            return words[index == leaving._OTHERS][index]

        def __setitem__(self, index: int, value: int) -> None:
            words[index == leaving._OTHERS][index] = value

    told._words = Words()  # type: ignore[assignment]
    recorded.runs(WRITER, told.hear, Heard(reason=4, rank=2))
    assert recorded.runs(READER, lambda: told.heard) == Heard(4, 2)


def record_requests(recorded: Recorded) -> None:
    """A group asks, is answered, and asks again for another step into the same memory."""
    asked = requests.Requests(TOPOLOGY, Arena(slot_memory(TOPOLOGY, INFO)))
    asked._request, asked._answered = recorded.word("request", np.zeros(1, int)), [recorded.word("answered", [0])]
    for name in ("_slot", "_step"):
        setattr(asked, name, recorded.watch(name, np.zeros(1, int)))
    observation, action = recorded.watch("observation", np.zeros(1)), recorded.watch("action", np.zeros(1))
    worker: Any = SimpleNamespace(
        _request=asked._request, _slot=asked._slot, _step=asked._step, _answered=asked._answered[0],
        requests=asked, topology=SimpleNamespace(every_row_acts=True, rows=1, worker_of_group=lambda group: group),
        record=Counters(), bells=SimpleNamespace(workers=[Silent()]),
    )  # fmt: skip

    def ask(step: int) -> None:
        observation[0] = step + 7
        asked.ask(0, 0, step)

    def serve() -> None:
        task = InferenceWorker._task(worker, 0)
        action[0] = observation[0] + 20
        InferenceWorker._answer(worker, [task])

    recorded.runs(WRITER, ask, 1)
    recorded.runs(READER, serve)
    assert recorded.runs(WRITER, asked.is_answered, 0)
    recorded.runs(WRITER, action.tolist)
    recorded.runs(WRITER, ask, 2)


class Silent:
    """Instead of a doorbell: who waits looks again by itself."""

    def ring(self) -> None:
        pass


class Counters(dict[str, float]):
    """Instead of a record."""

    def __missing__(self, name: str) -> float:
        return 0.0

    def lap(self, name: str) -> None:
        pass

    def publish(self) -> None:
        pass


def record_slots(recorded: Recorded) -> None:
    """A slot is filled, learned from, given back, and filled again."""
    own = slots.Slots(TOPOLOGY, Arena(slot_memory(TOPOLOGY, INFO)))
    for name in ("filling", "filled", "discarded", "taken", "released", "unused"):
        setattr(own, name, recorded.word(name, getattr(own, name).copy()))
    rewards = recorded.watch("rewards", np.zeros(1))

    def fill(value: float) -> None:
        assert own.state(0) is SlotState.FREE
        own.start_filling(0)
        rewards[0] = value
        own.finish_filling(0)

    def learn() -> None:
        (slot,) = own.waiting_for(0)
        own.take(slot, 0)
        rewards[0]
        own.release(slot, 0)

    recorded.runs(WRITER, fill, 1)
    recorded.runs(READER, learn)
    recorded.runs(WRITER, fill, 2)


def record_exchange(recorded: Recorded) -> None:
    """Three rounds, of which the last one writes the outbox of the first again."""
    arena = Arena(exchange.exchange_fields(1, 2))
    bell: Any = SimpleNamespace(ring=lambda: None)
    both = [exchange.Exchange(0, index, arena, [bell, bell]) for index in range(2)]
    rounds = recorded.word("rounds", np.zeros(2, int))
    others = {
        "_outbox": recorded.watch("outbox", np.zeros((2, 2, 1)), is_view=True),
        "_lengths": recorded.watch("lengths", np.zeros((2, 2), int)),
        "_weights": recorded.watch("weights", np.zeros((2, 2))),
    }
    for one in both:
        one._rounds = rounds
        for name, array in others.items():
            setattr(one, name, array)

    def post(index: int, value: float) -> None:
        both[index].post(np.array([value]))

    def read(index: int) -> None:
        assert both[index].is_complete()
        both[index]._outbox[1 - index, both[index]._round % 2][0]

    for number in (1, 2):
        for index in (WRITER, READER):
            recorded.runs(index, post, index, 10.0 * index + number)
        for index in (WRITER, READER):
            recorded.runs(index, read, index)
    recorded.runs(WRITER, post, WRITER, 3.0)


class Turns:
    """Two programs of which one runs while the other waits; the reader runs in a thread."""

    def __init__(self, recorded: Recorded, reader: Callable[[], None]) -> None:
        self._recorder, self._may_run = recorded.recorder, [threading.Semaphore(0), threading.Semaphore(0)]
        self._reader = reader
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._may_run[READER].acquire()
        self._reader()
        self._give(WRITER)

    def _give(self, process: int) -> None:
        self._recorder.running = process
        self._may_run[process].release()

    def pass_to(self, process: int) -> None:
        """Lets the other one run until it passes back."""
        self._give(process)
        assert self._may_run[1 - process].acquire(timeout=20)

    def end(self) -> None:
        """Lets the reader run to its end."""
        self.pass_to(READER)
        self._thread.join()


def record_vector_env(recorded: Recorded) -> None:
    """A worker of `sf.vector_env` carries out two steps, which have their actions in the same place."""
    arena: Any = {name: np.zeros(1, np.int64) for name in ("told", "progress")}
    arena |= {name: np.zeros(1, bool) for name in ("terminated", "truncated")}
    arena |= {f"{kind}obs": np.zeros((1, 1), np.float32) for kind in (vector_worker.OBSERVED, vector_worker.FINAL)}
    arena["orders"] = recorded.word("orders", np.zeros(1, int))
    arena |= {name: recorded.watch(name, np.zeros(1), is_view=True) for name in ("actions", "rewards")}
    bell = SimpleNamespace(ring=lambda: None)
    place: Any = SimpleNamespace(
        index=0, first=0, stop=1, source=None, info=INFO, action_space=None, arena=arena, own_bell=bell, bell=bell,
        starts=None,
    )  # fmt: skip
    turns = Turns(recorded, lambda: vector_worker.serve(lambda _: None, place))
    bell.wait = lambda _: turns.pass_to(WRITER)

    def wait(is_done: Callable[[], bool], *_: Any) -> None:
        while not is_done():
            turns.pass_to(READER)

    program: Any = SimpleNamespace(
        _arena=arena, _bells=[bell], _starts=[], _wait=wait, _timeout_s=1.0, _next_reap_s=math.inf, _children=[None]
    )
    recorded.recorder.running = WRITER
    for action in (1.0, 2.0):
        arena["actions"][0] = action
        VectorWorkers._carry_out(program, vector_worker.STEP)
        assert arena["rewards"][0] == action + 10
    order.PLAIN.publish(arena["orders"], 0, vector_worker.CLOSE)
    turns.end()


class OneEnv:
    """Instead of environments: the reward follows from the action."""

    def __init__(self, *_: Any) -> None:
        pass

    def use_actions_as_given(self, _: Any) -> None:
        pass

    def step(self, actions: Any, observations: Any, rewards: Any) -> list[Any]:
        rewards[0] = actions[0] + 10
        return []

    def close(self) -> None:
        pass
