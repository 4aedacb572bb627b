"""The arithmetic of the simulation of many ranks (row C-X2)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks/ranks_simulated.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="benchmarks are in the repository only")


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPT.parent.parent))
    return importlib.import_module("benchmarks.ranks_simulated")


def test_all_ranks_wait_for_the_slowest_without_the_rule(simulated: Any) -> None:
    sampling_s = np.array([[1.0, 3.0], [4.0, 2.0]])
    assert simulated.pace(sampling_s, 0.5, has_rule=False) == pytest.approx(4 / (3.5 + 4.5))


def test_the_rule_stops_sampling_when_60_percent_are_complete(simulated: Any) -> None:
    sampling_s = np.array([[1.0, 2.0, 3.0, 6.0]])
    assert simulated.pace(sampling_s, 1.0, has_rule=True) == pytest.approx((3 + 3 / 6) / (3 + 1))


def test_the_rule_waits_until_each_rank_has_a_quarter(simulated: Any) -> None:
    sampling_s = np.array([[1.0, 1.0, 1.0, 1.0, 8.0]])
    assert simulated.pace(sampling_s, 1.0, has_rule=True) == pytest.approx((4 + 1 / 4) / (2 + 1))


def test_one_rank_exchanges_nothing(simulated: Any) -> None:
    assert simulated.Exchange(0.1, 0.1).dataset_s(1, 1.0) == 0


def test_a_fit_finds_the_hops_that_made_its_measurements(simulated: Any) -> None:
    made = simulated.Exchange(0.002, 0.003)
    rows = [
        {"ranks": ranks, "delay_s": delay_s, "loss": 0.0, "numbers": numbers, "median_s": cost(ranks, delay_s)}
        for ranks in (2, 4)
        for delay_s in (0.0, 0.01)
        for numbers, cost in ((1, made.gather_s), (simulated.SIZES["CartPole"], made.mean_s))
    ]
    found = simulated.fitted(rows)
    assert (found.gather_hop_s, found.mean_hop_s) == pytest.approx((0.002, 0.003))
