"""When a worker that died is started again, on a clock of our own."""

from __future__ import annotations

import pytest

from sf.processes.restarts import LONGEST_DELAY_S, Restarts


def lives(restarts: Restarts, seconds: float, delivered: bool, count: int) -> list[float | None]:
    """The pauses before the successors of workers that live so long each; ends with the last one."""
    now_s, delays = 0.0, []
    for _ in range(count):
        now_s += seconds
        delays.append(restarts.delay_s(now_s, delivered))
        if delays[-1] is None:
            break
        now_s += delays[-1]
    return delays


def test_fault_a6_pauses_grow_while_nothing_is_delivered() -> None:
    delays = lives(Restarts(100), 5.0, delivered=False, count=9)
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, LONGEST_DELAY_S, LONGEST_DELAY_S]


@pytest.mark.parametrize("seconds", [0.1, 2.0, 5.0, 60.0, 1000.0])
def test_fault_a6_deaths_in_vain_use_up_the_budget_however_slow_they_come(seconds: float) -> None:
    delays = lives(Restarts(10), seconds, delivered=False, count=2000)
    assert len(delays) == 11
    assert delays[-1] is None


def test_deaths_of_those_who_deliver_use_it_up_only_within_a_minute() -> None:
    assert lives(Restarts(10), 1.0, delivered=True, count=100) == [0.0] * 10 + [None]
    assert lives(Restarts(10), 10.0, delivered=True, count=100) == [0.0] * 100


def test_a_worker_that_delivers_begins_anew() -> None:
    restarts = Restarts(3)
    for now_s in range(0, 100_000, 1000):
        assert restarts.delay_s(float(now_s), delivered=False) is not None
        assert restarts.delay_s(float(now_s) + 1, delivered=True) == 0.0


def test_no_restarts_at_all() -> None:
    assert Restarts(0).delay_s(0.0, delivered=True) is None


def test_pause_never_overflows() -> None:
    assert lives(Restarts(5000), 100.0, delivered=False, count=3000)[-1] == LONGEST_DELAY_S
