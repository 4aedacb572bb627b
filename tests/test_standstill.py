"""What is said when learners have nothing to learn from."""

from __future__ import annotations

from sf.monitor.snapshot import PolicySnapshot, Snapshot
from sf.monitor.standstill import Standstill


def told(*seen: tuple[float, int, int], busy: bool = False) -> list[tuple[float, str]]:
    """When something is said, and what: of time, iterations and samples at each look, over two policies."""
    standstill, found = Standstill(dataset=2048), []
    for time_s, iterations, samples in seen:
        policies = (
            PolicySnapshot(iterations=iterations, samples=samples, waits=not busy),
            PolicySnapshot(iterations=5, samples=7, waits=True),
        )
        if sentence := standstill.look(Snapshot(time_s, policies)):
            found.append((time_s, sentence))
    return found


def test_fault_f2_nothing_is_said_while_learners_get_on() -> None:
    assert told(*[(100.0 + 29.9 * n, n, 10 * n) for n in range(20)]) == []
    assert told(*[(100.0 + 29.9 * n, 0, 0) for n in range(20)], busy=True) == [], (
        "a learner that computes waits for nobody"
    )


def test_fault_f2_the_reason_of_a_long_wait_is_told_ever_more_rarely() -> None:
    (at, text), *later = told(*[(100.0 + n, 3, 50 + 10 * n) for n in range(300)])
    assert at == 130.0
    assert text.startswith(
        "Learners have been waiting for trajectories for 30 s. The environments have taken 300 steps"
    )
    assert "of 2,048 that make a dataset" in text
    assert [time_s for time_s, _ in later] == [160.0, 220.0, 340.0]


def test_fault_f2_environments_that_answer_nothing_are_named() -> None:
    first, again = told((0.0, 0, 80), (31.0, 0, 80), (40.0, 1, 80), (69.0, 1, 80), (70.5, 1, 80))
    assert first[0] == 31.0
    assert again[0] == 70.5, "a dataset begins it anew"
    assert "No environment has asked for an action meanwhile" in first[1]
    assert "--env_step_timeout" in first[1]
