"""What is said when learners have nothing to learn from."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sf.monitor import standstill
from sf.monitor.snapshot import PolicySnapshot, Snapshot
from sf.monitor.standstill import Standstill
from sf.run.supervisor import train
from tests.helpers.lab import make_config
from tests.helpers.monitored import seen_at


def told(*seen: tuple[float, int, int], busy: bool = False) -> list[tuple[float, str]]:
    """When something is said, and what: of time, iterations and samples at each look, over two policies."""
    watching, found = Standstill(dataset=2048), []
    for time_s, iterations, samples in seen:
        policies = (
            PolicySnapshot(iterations=iterations, samples=samples, waits=not busy),
            PolicySnapshot(iterations=5, samples=7, waits=True),
        )
        if sentence := watching.look(seen_at(Snapshot(time_s, policies))):
            found.append((time_s, sentence))
    return found


def test_fault_f2_nothing_is_said_while_learners_get_on() -> None:
    assert told(*[(100.0 + 2 * n, n // 14, 10 * n) for n in range(200)]) == []
    assert told(*[(100.0 + 2 * n, 0, 0) for n in range(200)], busy=True) == [], "a learner that computes does not wait"


def test_fault_f2_the_reason_of_a_long_wait_is_told_ever_more_rarely() -> None:
    (at, text), *later = told(*[(100.0 + n, 3, 50 + 10 * n) for n in range(300)])
    assert at == 130.0
    assert text.startswith("Learners have been waiting for trajectories for 30 s. 300 actions were computed meanwhile")
    assert "a dataset takes 2,048 of one policy" in text
    assert [time_s for time_s, _ in later] == [160.0, 220.0, 340.0]


def test_fault_f2_environments_that_answer_nothing_are_named() -> None:
    waits = [(float(n), 0, 80) for n in range(0, 41, 4)] + [(float(n), 1, 80) for n in range(44, 80, 4)]
    first, again = told(*waits)
    assert first[0] == 32.0
    assert again[0] == 76.0, "a dataset begins it anew"
    assert "No action was computed meanwhile" in first[1]
    assert "--env_step_timeout" in first[1]


def test_fault_f2_time_in_which_the_run_was_stopped_does_not_count() -> None:
    assert told((0.0, 0, 80), (1.0, 0, 80), (1000.0, 0, 80), (1001.0, 0, 80)) == []


@pytest.mark.more
def test_fault_f2_whole_run_says_why_its_learner_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standstill, "FIRST_S", 1.0)
    slow = make_config(
        "tests.environments.fault:Fault-v0", env_kwargs='{"step_s": 0.3}', train_dir=str(tmp_path),
        num_envs_per_worker=1, rollout=64, batch_size=64, worker_num_splits=1, train_for_seconds=5,
    )  # fmt: skip
    assert train(replace(slow, run=replace(slow.run, serial_mode=False))).code == 0
    said = capfd.readouterr().out
    assert re.search(r"Learners have been waiting for trajectories for \d s\. \d actions were computed meanwhile", said)
