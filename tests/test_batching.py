"""Which requests form a batch (row S4): a held request waits no longer than a forward pass, and never for nothing."""

from __future__ import annotations

import numpy as np
import pytest

from sf.arena import Arena
from sf.inference.batching import LONGEST_HOLD_S, Batching
from sf.slots import Requests, Slots, Topology, slot_fields
from tests.test_slots import INFO


class Bench:
    """Four workers with two groups each, all in the middle of a trajectory, and a clock that stands still."""

    def __init__(self, num_workers: int = 4, groups_per_worker: int = 2):
        topology = Topology(num_workers, groups_per_worker, 2, 1, 8, 1, 1, 1)
        arena = Arena(slot_fields(topology, INFO))
        self.slots, self.requests, self.time_s = Slots(topology, arena, INFO), Requests(topology, arena), 100.0
        for slot in range(topology.num_slots):
            self.slots.start_filling(slot)
        groups = np.arange(topology.num_groups)
        self.batching = Batching(groups, self.slots, self.requests, 0, lambda: self.time_s)
        for _ in range(1000):
            self.batching.served(0.002)

    def ask(self, *groups: int) -> None:
        for group in groups:
            self.requests.ask(group, group, 0)

    def served(self) -> list[int]:
        positions: list[int] = self.batching.waiting().tolist()
        return positions


def test_s4_requests_are_held_while_every_worker_has_something_to_do() -> None:
    bench = Bench()
    bench.ask(0)
    assert bench.served() == []
    assert bench.batching.hold_left_s == pytest.approx(0.002)
    bench.ask(2, 4)
    assert bench.served() == []
    bench.ask(7)  # half of the groups wait
    assert bench.served() == [0, 2, 4, 7]
    assert bench.batching.hold_left_s == np.inf


def test_s4_nobody_is_held_back_longer_than_a_forward_pass() -> None:
    bench = Bench()
    bench.ask(0)
    assert bench.served() == []
    bench.time_s += 0.0019
    assert bench.served() == []
    bench.time_s += 0.0002
    assert bench.served() == [0]


def test_s4_nor_longer_than_25_ms() -> None:
    bench = Bench()
    for _ in range(1000):
        bench.batching.served(1.0)
    bench.ask(0)
    assert bench.served() == []
    assert bench.batching.hold_left_s == pytest.approx(LONGEST_HOLD_S) == 0.025


def test_s4_a_worker_that_has_nothing_else_to_do_is_served_at_once() -> None:
    bench = Bench()
    bench.ask(2, 3)
    assert bench.served() == [2, 3]


def test_s4_a_group_without_a_free_slot_is_nothing_to_do() -> None:
    bench = Bench()
    bench.slots.finish_filling(1)
    bench.ask(0)
    assert bench.served() == [0]


def test_s4_at_once_when_nobody_else_can_send_one() -> None:
    bench = Bench(num_workers=1, groups_per_worker=1)
    bench.ask(0)
    assert bench.served() == [0]
