"""The policy lag that the sizes of a run promise, against runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.errors import ExitCode
from sf.learner.batch import Batch
from sf.monitor.expected_lag import ExpectedLag, expected_lag, forecast
from sf.monitor.lag_sight import LagCounted
from sf.monitor.lines import lag_line
from sf.run.topology import Sizes
from tests.helpers.commands import run
from tests.helpers.lab import make_config, make_lab, step_until

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
            (2, 10.0, 18, False),
        ),
        ({"async_rl": False, "num_epochs": 2, "num_batches_per_epoch": 4, "batch_size": 32}, 1, (0.0, 3.5, 7.0, True)),
        ({"async_rl": False, "num_epochs": 2, "batch_size": 128, "target_kl": 0.1}, 1, (0.0, 0.5, 1.0, False)),
        ({"async_rl": False, "serial_mode": True, "num_epochs": 2, "batch_size": 128}, 1, (0.0, 0.5, 1.0, True)),
        ({"worker_num_splits": 1, "batch_size": 32}, 8, (6, 6.5, 7, False)),  # a slot reaches into two batches
        ({"num_epochs": 2, "worker_num_splits": 1, "batch_size": 16}, 16, (24, 27.5, 31, False)),
        ({"serial_mode": True, "batch_size": 32}, 4, (0.0, 1.5, 3.0, True)),
        ({"serial_mode": True, "batch_size": 256}, 2, (0.0, 0.0, 0.0, True)),
        ({"serial_mode": True, "batch_size": 32}, 8, (0.0, 1.5, 7.0, False)),  # room for two rounds
        ({"serial_mode": True, "batch_size": 80, "num_epochs": 2}, Fraction(8, 5), (0.0, 1.1, 3.0, False)),
        ({"serial_mode": True, "batch_size": 192}, 2, (0.0, 0.0, 1.0, False)),
        ({"serial_mode": True, "batch_size": 32, "target_kl": 0.1}, 4, (0.0, 1.5, 3.0, False)),
        ({"serial_mode": True, "batch_size": 32, "bound_policy_lag": 2}, 4, (0.0, 1.5, 2.0, False)),
        ({"serial_mode": True, "batch_size": 32, "target_policy_lag": 1.0}, 4, (0.0, 1.0, 3.0, False)),
        ({"serial_mode": True, "batch_size": 16, "num_policies": 2}, 4, (0.0, 1.5, 3.0, False)),
        ({"replay": "staleness", "async_rl": False, "batch_size": 128}, 1, None),
    ],
)
def test_lag_from_sizes(flags: dict[str, Any], held: Any, expected: ExpectedLag | None) -> None:
    config = make_config(**{"async_rl": True, "num_epochs": 1, **SIZES, **flags})
    assert expected_lag(config, 1, Fraction(held)) == (expected and pytest.approx(expected))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"async_rl": False}, "Expected policy lag: min 0, avg 0.5, max 1 (avg 0.25 batches of 2 steps)"),
        (
            {},
            "Expected policy lag: min 2, avg 2.5, max 3 (avg 1.2 batches of 2 steps) while "
            "training holds the run back, else less on average",
        ),
        (
            {"async_rl": False, "target_kl": 0.1},
            "Expected policy lag: min 0, avg 0.5, max 1 (avg 0.25 batches of 2 steps), or less "
            "where target_kl ends a batch early",
        ),
        (
            {"serial_mode": True, "bound_policy_lag": 1},
            "Expected policy lag: min 0, avg 0.5, max 1 (avg 0.25 batches of 2 steps), roughly",
        ),
        ({"replay": "staleness"}, "Policy lag is not forecast: replay=staleness draws transitions of any age."),
        (
            {"replay": "staleness", "max_staleness": 9, "bound_policy_lag": 12},
            "Policy lag is not forecast: replay=staleness draws transitions of up to 9 optimizer steps.",
        ),
    ],
)
def test_forecast_says_how_far_it_goes(flags: dict[str, Any], sentence: str) -> None:
    config = make_config(**{"async_rl": True, "num_epochs": 2, "batch_size": 128, **SIZES, **flags})
    assert forecast(config, 1, Fraction(2)) == sentence


WHOLE_SERIAL_RUNS: list[dict[str, Any]] = [
    {"batch_size": 32, "num_epochs": 2},
    {"batch_size": 256},
    {"batch_size": 48},
    {"batch_size": 80, "num_epochs": 2},
    {"batch_size": 192},
    {"batch_size": 32, "num_batches_to_accumulate": 8},
    {"batch_size": 64, "num_epochs": 2, "num_batches_to_accumulate": 4},
    {"batch_size": 32, "num_batches_to_accumulate": 8, "bound_policy_lag": 4},
    {"batch_size": 16, "num_policies": 2},
]


@pytest.mark.parametrize("flags", WHOLE_SERIAL_RUNS)
def test_serial_lag_is_within_what_is_expected(tmp_path: Path, flags: dict[str, Any]) -> None:
    """It is equal where the forecast calls itself exact."""
    lab = make_lab(tmp_path, num_envs_per_worker=8, rollout=16, async_rl=True, **flags)
    roles, lags = lab.build_all(), list[tuple[float, float]]()
    learner = roles[0]
    steps = learner.update.steps

    def kept(batch: Batch) -> Any:
        for report in steps(batch):
            lags.append((report.lag_avg, report.lag_max))
            yield report

    learner.update.steps = kept
    step_until(roles, lambda: learner.record["iterations"] == 24)
    held = Sizes.of(lab.config, lab.specs[0].arguments["context"].info).batches_held
    expected = expected_lag(lab.config, 1, held)
    assert expected is not None
    average, most = sum(lag for lag, _ in lags) / len(lags), max(lag for _, lag in lags)
    if expected.is_exact:
        assert average == pytest.approx(expected.avg)
        assert most == expected.max
    else:
        assert most <= expected.max
        assert expected.max == int(expected.max)


@pytest.mark.parametrize("batch_size", [16, 32, 64])
def test_slots_that_are_wider_than_a_batch_wait_for_fewer_batches(tmp_path: Path, batch_size: int) -> None:
    """With sampling that takes no time; 8 trajectories in a slot, 1 to 4 in a batch."""
    sizes: dict[str, Any] = {"num_envs_per_worker": 8, "worker_num_splits": 1, "rollout": 16, "num_epochs": 2}
    lab = make_lab(tmp_path, async_rl=True, batch_size=batch_size, num_batches_to_accumulate=256 // batch_size, **sizes)
    learner, *others = lab.build_all()
    steps, lags = learner.update.steps, list[float]()

    def kept(batch: Batch) -> Any:
        for report in steps(batch):
            lags.append(report.lag_avg)
            yield report

    learner.update.steps = kept
    for _ in range(64):
        while any([role.step() for role in others]):
            pass
        assert learner.step()
    config = replace(lab.config, run=replace(lab.config.run, serial_mode=False))
    expected = expected_lag(config, 1, Sizes.of(lab.config, lab.specs[0].arguments["context"].info).batches_held)
    assert expected is not None
    late = lags[-2 * 256 // batch_size :]
    assert (min(late), sum(late) / len(late), max(late)) == expected[:3]


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
    assert f"Expected policy lag: min 0, avg {expected['avg']:.4g}, max {expected['max']:.4g} (avg" in printed
    assert re.search(rf"Policy #0 lag over the run: avg .+, max {expected['max']:.1f} \(expected: avg", printed)


@pytest.mark.parametrize(("largest", "is_exact", "told"), [(31, False, False), (32, False, True), (32, True, False)])
def test_the_last_line_says_why_a_lag_is_larger_than_expected(largest: int, is_exact: bool, told: bool) -> None:
    counted = LagCounted().with_step(np.array([16, largest]))
    line = lag_line(0, counted, ExpectedLag(16.0, 23.5, 31.0, is_exact))
    assert line.endswith("larger where a worker waits for a core or its environments)") is told
    assert "(expected: avg 23.5, max 31" in line


@pytest.mark.more
def test_asynchronous_run_shows_expected_and_measured_lag(tmp_path: Path) -> None:
    """No more than that: a worker that waits for a core in the middle of a trajectory exceeds any number."""
    flags = "--batch_size=32", "--num_batches_per_epoch=4", "--num_epochs=4", "--train_for_env_steps=20000"
    expected, measured, printed = lags(tmp_path, *flags)
    assert not expected["is_exact"]
    assert (expected["min"], expected["avg"], expected["max"]) == (16.0, 23.5, 31.0)
    assert 0 < measured["avg"] < measured["max"]
    assert "while training holds the run back, else less on average" in printed
