"""The hand-overs in shared memory, for two processes that hammer them.

All numbers behind a word are the number that the word stands for. So a read of data that are older or newer than their
word, or of two moments, shows itself. One process hands over, the other one takes over; where there is an answer, the
first one checks that too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sf.plans.mailbox import Mailbox
from sf.shared.arena import Arena, Array, Field
from sf.shared.doorbell import Doorbell
from sf.shared.exchange import Exchange, exchange_fields
from sf.shared.order import observe, publish
from sf.shared.records import learner_record, record_fields
from sf.shared.requests import Requests
from sf.shared.slot_fields import slot_memory
from sf.shared.slots import Slots, SlotState
from sf.shared.topology import Topology
from sf.shared.weights import NOTHING_PUBLISHED, PublishedWeights
from sf.spaces import ActionSpec, EnvInfo, LeafSpec

SIZE, FEW = 4096, 64
"""Numbers behind a word: as many as small networks have weights, and as the observations of a few environments."""
TOPOLOGY = Topology(
    num_workers=1, groups_per_worker=1, envs_per_group=1, agents_per_env=1, rollout=1, slots_per_group=2,
    num_policies=1, inference_per_policy=1,
)  # fmt: skip
INFO = EnvInfo("litmus", 1, {"obs": LeafSpec((FEW,), "float32")}, ActionSpec.discrete(2))
IDLE, STEP = 0, 2
GoOn = Callable[[], bool]


class Reads(NamedTuple):
    """What a process has seen."""

    number: int = 0
    torn: int = 0
    """Reads with numbers of another moment than that of their word."""
    backwards: int = 0
    """Reads that were older than the one before."""

    def and_those(self, other: Reads) -> Reads:
        """The sum of two processes, or of an earlier and a later moment."""
        return Reads(*(own + more for own, more in zip(self, other, strict=True)))


class ReadCount:
    """Counts reads."""

    def __init__(self) -> None:
        self.reads, self._newest = Reads(), NOTHING_PUBLISHED

    def look(self, version: int, *numbers: Any) -> None:
        """Takes in what a word stands for, and the numbers behind it."""
        is_torn = any(bool((np.asarray(some) != version).any()) for some in numbers)
        self.reads = self.reads.and_those(Reads(1, is_torn, version < self._newest))
        self._newest = version


def until(is_true: Callable[[], bool], go_on: GoOn) -> bool:
    """Waits for the other process, which may need this core; False if it is over before."""
    while not is_true():
        if not go_on():
            return False
        os.sched_yield()
    return True


class WeightsLitmus:
    """A vector as fast as it can be published, and copied as fast as it can be read."""

    name = "weights"

    def __init__(self) -> None:
        self.weights = PublishedWeights()
        self.weights.allocate(SIZE)

    def hand_over(self, go_on: GoOn) -> Reads:
        version = 0
        while go_on():
            self.weights.publish(version, lambda buffer, version=version: buffer.fill(version))  # type: ignore[misc]
            version += 1
        return Reads()

    def take_over(self, go_on: GoOn) -> Reads:
        tally, copy = ReadCount(), np.zeros(SIZE, np.float32)
        while go_on():
            if self.weights.version != NOTHING_PUBLISHED:
                tally.look(self.weights.read(lambda buffer: np.copyto(copy, buffer)), copy)
        return tally.reads


class RecordsLitmus:
    """The counters of a learner."""

    name = "records"

    def __init__(self) -> None:
        self.arena = Arena(record_fields(1, 1, 1))

    def hand_over(self, go_on: GoOn) -> Reads:
        record, number = learner_record(self.arena, 0), 0
        while go_on():
            number += 1
            for column in range(len(record.local)):
                record.local[column] = number
            record.publish()
        return Reads()

    def take_over(self, go_on: GoOn) -> Reads:
        tally, record = ReadCount(), learner_record(self.arena, 0)
        while go_on():
            values = list(record.read().values())
            tally.look(int(values[0]), values)
        return tally.reads


class RequestsLitmus:
    """Observations and actions of one group."""

    name = "requests"

    def __init__(self) -> None:
        words = {name: Field((1,), "int64") for name in ("request", "request_slot", "request_step")}
        data = {name: Field((FEW,), "int64") for name in ("observations", "actions")}
        self.arena = Arena({**words, **data, "answered": Field((1, 1), "int64")})

    def hand_over(self, go_on: GoOn) -> Reads:
        tally, requests, number = ReadCount(), Requests(TOPOLOGY, self.arena), 0
        while go_on():
            number += 1
            self.arena["observations"].fill(number)
            requests.ask(0, number, number)
            if not until(lambda: requests.is_answered(0), go_on):
                break
            tally.look(number, self.arena["actions"])
        return tally.reads

    def take_over(self, go_on: GoOn) -> Reads:
        tally, requests = ReadCount(), Requests(TOPOLOGY, self.arena)
        request, answered = requests.request, requests.answered
        while until(lambda: bool(request[0] != answered[0, 0]), go_on):
            number = int(requests.observe(request, 0))
            tally.look(number, requests.slot, requests.step, self.arena["observations"])
            self.arena["actions"].fill(number)
            requests.publish(answered, (0, 0), number)
        return tally.reads


class SlotsLitmus:
    """Two slots, which are filled, learned from and filled again."""

    name = "slots"

    def __init__(self) -> None:
        self.arena = Arena(slot_memory(TOPOLOGY, INFO))

    def hand_over(self, go_on: GoOn) -> Reads:
        slots, number = Slots(TOPOLOGY, self.arena), 0
        while until(partial(_is_free, slots, number % 2), go_on):
            slots.start_filling(number % 2)
            slots.observations["obs"][number % 2].fill(number)
            slots.finish_filling(number % 2)
            number += 1
        return Reads()

    def take_over(self, go_on: GoOn) -> Reads:
        tally, slots = ReadCount(), Slots(TOPOLOGY, self.arena)
        while go_on():
            for slot in slots.waiting_for(0).tolist():
                slots.take(slot, 0)
                number = 2 * (int(slots.filled[slot]) - 1) + slot
                tally.look(number, slots.observations["obs"][slot])
                slots.release(slot, 0)
        return tally.reads


def _is_free(slots: Slots, slot: int) -> bool:
    return slots.state(slot) is SlotState.FREE


class ExchangeLitmus:
    """Two learners that show each other gradients."""

    name = "exchange"

    def __init__(self) -> None:
        self.arena, self.bells = Arena(exchange_fields(1, 2)), [Doorbell(), Doorbell()]

    def hand_over(self, go_on: GoOn) -> Reads:
        return self._exchange(0, go_on)

    def take_over(self, go_on: GoOn) -> Reads:
        return self._exchange(1, go_on)

    def _exchange(self, index: int, go_on: GoOn) -> Reads:
        tally, exchange, number = ReadCount(), Exchange(0, index, self.arena, self.bells), 0
        while go_on():
            number += 1
            exchange.post(np.full(FEW, number), number)
            if not until(exchange.is_complete, go_on):
                break
            tally.look(number, *exchange.read(np.int64, FEW), exchange.weights())
        return tally.reads


class MailboxLitmus:
    """Messages from the driver of a plan to a worker."""

    name = "plans"

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.mailbox.allocate()

    def hand_over(self, go_on: GoOn) -> Reads:
        number = 0
        while go_on():
            number = self.mailbox.send([number] * (FEW + number % FEW)) + 1  # of several lengths
        return Reads()

    def take_over(self, go_on: GoOn) -> Reads:
        tally = ReadCount()
        while go_on():
            number, message = self.mailbox.read()
            if number != NOTHING_PUBLISHED:
                tally.look(number, message)
        return tally.reads


class OrdersLitmus:
    """Actions and rewards of a worker of `sf.vector_env`, with an order in between."""

    name = "sf.vector_env"

    def __init__(self) -> None:
        data = {name: Field((FEW,), "int64") for name in ("actions", "rewards")}
        self.arena = Arena({"orders": Field((1,), "int64", IDLE), **data})

    def hand_over(self, go_on: GoOn) -> Reads:
        tally, orders, number = ReadCount(), self.arena["orders"], 0
        while go_on():
            number += 1
            self.arena["actions"].fill(number)
            publish(orders, slice(None), STEP)
            if not until(lambda: not observe(orders, slice(None)).any(), go_on):
                break
            tally.look(number, self.arena["rewards"])
        return tally.reads

    def take_over(self, go_on: GoOn) -> Reads:
        tally, orders, number = ReadCount(), self.arena["orders"], 0
        while until(lambda: bool(observe(orders, 0) != IDLE), go_on):
            number += 1
            tally.look(number, self.arena["actions"])
            self.arena["rewards"].fill(number)
            publish(orders, 0, IDLE)
        return tally.reads


Litmus = WeightsLitmus | RecordsLitmus | RequestsLitmus | SlotsLitmus | ExchangeLitmus | MailboxLitmus | OrdersLitmus
LITMUSES: Sequence[type[Litmus]] = (
    WeightsLitmus, RecordsLitmus, RequestsLitmus, SlotsLitmus, ExchangeLitmus, MailboxLitmus, OrdersLitmus,
)  # fmt: skip


class Stop:
    """Ends a litmus in both processes."""

    def __init__(self) -> None:
        self._arena = Arena({"stopped": Field((1,), "int64")})

    @property
    def _word(self) -> Array:
        return self._arena["stopped"]

    def set(self, is_over: bool) -> None:
        """By the process that hands over."""
        self._word[0] = is_over

    def go_on(self) -> bool:
        return not self._word[0]
