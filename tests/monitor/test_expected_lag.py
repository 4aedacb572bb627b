"""The policy lag that the sizes of a run promise, against runs."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.errors import ExitCode
from sf.monitor.expected_lag import ExpectedLag, expected_lag
from tests.helpers.commands import run
from tests.helpers.lab import make_config

SIZES = {"num_workers": 2, "num_envs_per_worker": 4, "rollout": 16}


@pytest.mark.parametrize(
    ("flags", "held", "expected"),
    [
        ({"num_epochs": 2, "num_batches_per_epoch": 8, "batch_size": 16}, 2, (16.0, 23.5, 31.0, False)),
        ({"num_epochs": 1, "num_batches_per_epoch": 1, "batch_size": 128}, 1, (0.0, 0.0, 0.0, False)),
        ({"num_epochs": 3, "num_batches_per_epoch": 2, "batch_size": 64}, Fraction(5, 2), (9.0, 11.5, 14.0, False)),
        (
            {"num_epochs": 2, "num_batches_per_epoch": 8, "batch_size": 16, "bound_policy_lag": 20},
            2,
            (5.0, 12.5, 20.0, False),
        ),
        (
            {"num_epochs": 2, "num_batches_per_epoch": 8, "batch_size": 16, "target_policy_lag": 10.0},
            2,
            (2.5, 10.0, 17.5, False),
        ),
        ({"async_rl": False, "num_epochs": 2, "num_batches_per_epoch": 4, "batch_size": 32}, 1, (0.0, 3.5, 7.0, True)),
        ({"serial_mode": True, "num_batches_per_epoch": 1, "batch_size": 32}, 9, (0.0, 1.5, 3.0, True)),
    ],
)
def test_lag_from_sizes(flags: dict[str, Any], held: Any, expected: ExpectedLag) -> None:
    config = make_config(**{"async_rl": True, "num_epochs": 1, **SIZES, **flags})
    assert expected_lag(config, 1, Fraction(held)) == expected


def lags(tmp_path: Path, *flags: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Expected and measured, and what was printed."""
    sizes = "--num_workers=2", "--num_envs_per_worker=4", "--rollout=16", "--env=CartPole-v1"
    finished = run(tmp_path / "out", *sizes, f"--train_dir={tmp_path}", "--experiment=lags", *flags)
    assert finished.code == ExitCode.FINISHED, finished.err
    summary = json.loads((tmp_path / "lags" / "summary.json").read_text())
    return summary["expected_lag"], summary["policies"][0]["lag_of_run"], finished.out


@pytest.mark.parametrize(
    "flags",
    [
        ("--async_rl=False", "--batch_size=32", "--num_batches_per_epoch=4", "--num_epochs=2"),
        ("--async_rl=False", "--batch_size=128", "--num_batches_per_epoch=2", "--num_epochs=1"),
        ("--serial_mode=True", "--batch_size=32", "--num_batches_per_epoch=1", "--num_epochs=2"),
    ],
)
def test_synchronous_and_serial_runs_have_exactly_the_expected_lag(tmp_path: Path, flags: tuple[str, ...]) -> None:
    expected, measured, printed = lags(tmp_path, "--train_for_env_steps=4096", *flags)
    assert expected["is_exact"]
    counts: list[int] = measured.pop("histogram")
    assert [measured["avg"], measured["max"]] == [pytest.approx(expected["avg"]), expected["max"]]
    assert measured["acting"] + measured["queued"] + measured["epochs"] == pytest.approx(measured["avg"])
    assert np.average(range(len(counts)), weights=counts) == pytest.approx(expected["avg"], rel=0.01)
    if "--serial_mode=True" not in flags:  # where workers and training take turns, data never waits
        assert [measured["acting"], measured["queued"]] == pytest.approx([0.0, 0.0])
        assert len(counts) == expected["max"] + 1
        assert len(set(counts)) == 1, "each step of an iteration trains on equally many transitions"
    assert f"Expected policy lag: min 0, avg {expected['avg']:.4g}, max {expected['max']:.4g}\n" in printed
    assert re.search(rf"Policy #0 lag over the run: avg .+, max {expected['max']:.1f} \(expected: avg", printed)


def test_asynchronous_run_shows_expected_and_measured_lag(tmp_path: Path) -> None:
    """No more than that: a worker that waits for a core in the middle of a trajectory exceeds any number."""
    flags = "--batch_size=32", "--num_batches_per_epoch=4", "--num_epochs=4", "--train_for_env_steps=20000"
    expected, measured, printed = lags(tmp_path, *flags)
    assert not expected["is_exact"]
    assert (expected["min"], expected["avg"], expected["max"]) == (16.0, 23.5, 31.0)
    assert 0 < measured["avg"] < measured["max"]
    assert "while training holds the run back, else less" in printed
