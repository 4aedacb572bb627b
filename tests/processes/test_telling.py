"""Work that takes long is told about, at growing distances."""

from __future__ import annotations

import threading

import pytest

from sf import console
from sf.console import Console, spoke_s
from sf.processes import telling
from sf.processes.telling import FIRST_S, LONGEST_S, LOOK_S, Pace, told_if_slow, told_while


def moments(spoke_at: float = 0.0, until_s: int = 400) -> list[int]:
    """The seconds at which a line comes if one is asked for every second; another line came at `spoke_at`."""
    pace = Pace()
    return [now for now in range(until_s) if pace.is_due(float(now), spoke_at if now >= spoke_at else 0.0)]


def test_first_line_comes_within_five_seconds_and_the_distances_double_up_to_a_limit() -> None:
    assert FIRST_S + LOOK_S < 5
    assert moments() == [4, 12, 28, 60, 120, 180, 240, 300, 360]
    assert LONGEST_S == 60


def test_other_output_puts_a_line_off_by_the_present_distance() -> None:
    assert moments(spoke_at=3.0)[:3] == [7, 15, 31]
    assert moments(spoke_at=10.0)[:4] == [4, 18, 34, 66]


def test_console_knows_when_it_has_spoken_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_spoke_s", 0.0)
    Console().line("anything")
    assert spoke_s() > 0.0


def test_work_in_this_process_that_is_slow_is_told_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with told_while(lambda _: "something quick", lambda _: pytest.fail("it was not slow")):
        pass
    monkeypatch.setattr(telling, "FIRST_S", 0.0)
    monkeypatch.setattr(telling, "LOOK_S", 0.001)
    monkeypatch.setattr(console, "_spoke_s", 0.0)
    lines: list[str] = []
    is_told = threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        is_told.set()

    with told_while(lambda seconds: f"{seconds >= 0} so far", tell):
        assert is_told.wait(60)
    assert set(lines) == {"True so far"}
    assert not [thread for thread in threading.enumerate() if thread.name == "telling"]


def test_an_exception_of_the_work_is_raised_and_ends_the_lines() -> None:
    with pytest.raises(ValueError, match="mine"), told_if_slow("something"):
        raise ValueError("mine")
    assert not [thread for thread in threading.enumerate() if thread.name == "telling"]
