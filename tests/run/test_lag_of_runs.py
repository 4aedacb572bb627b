"""Policy lag of whole runs: none where the roles take turns, little where they overlap, and none that grows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.commands import (
    EXPERIMENT,
    run,
    running,
    summary_of,
)
from tests.helpers.events import read_events
from tests.run.test_run import MODES, OPEN, SMALL, matches

LONG_S = 600


@pytest.mark.more
def test_a10_zero_lag_on_the_console_and_in_tensorboard(tmp_path: Path, oracles: dict[str, Any]) -> None:
    """(c) with several processes: 200 iterations and more, and every reported lag is 0.0."""
    with running(tmp_path, *MODES["a2c"]) as command:
        command.wait_for(lambda: re.search(r"policy_version [2-9]\d\d", command.out), "200 iterations")
        command.wait_for(lambda: command.out.count("Fps is") >= 2, "a report of what was trained")
        command.process.terminate()
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    reports = matches(oracles["A15"]["regex"], finished)
    first, *lags = [(match["lag_min"], match["lag_avg"], match["lag_max"]) for match in reports]
    assert first in (("-1.0", "-1.0", "-1.0"), ("0.0", "0.0", "0.0")), "before or after the first minibatch"
    assert set(lags) == {("0.0", "0.0", "0.0")}
    summary = summary_of(tmp_path)
    assert summary["policies"][0]["policy_version"] >= 200
    assert summary["frames"] == summary["policies"][0]["policy_version"] * 256
    curves = read_events(tmp_path / EXPERIMENT / ".summary" / "0")
    for name in ("min", "avg", "max"):
        assert {value for _, value in curves[f"train/version_diff_{name}"]} == {0.0}
    assert {value for _, value in curves["train/fraction_clipped"]} == {0.0}
    for _, value in curves["train/ratio_min"] + curves["train/ratio_max"]:
        assert value == pytest.approx(1, abs=1e-5)


@pytest.mark.alone
def test_a7_sampling_during_training_adds_little_lag(tmp_path: Path, oracles: dict[str, Any]) -> None:
    """Asynchronous, E = B = 1 and a fast learner: the average lag is at most 3 and stays there."""
    flags = ("--num_epochs=1", "--num_batches_per_epoch=1", "--train_for_seconds=11")
    finished = run(tmp_path, *SMALL, *flags)
    assert finished.code == 0, finished.err
    reports = matches(oracles["A15"]["regex"], finished)
    assert len(reports) >= 3
    assert all(float(report["lag_avg"]) <= 3 for report in reports)
    curves = read_events(tmp_path / EXPERIMENT / ".summary" / "0")
    assert max(value for _, value in curves["train/version_diff_max"]) <= 3
    lag = summary_of(tmp_path)["policies"][0]["lag_of_run"]
    assert lag["avg"] <= 1
    assert sum(lag["histogram"][4:]) <= 0.001 * sum(lag["histogram"])


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("inference", [1, 0])
def test_a28_lag_does_not_grow_over_ten_minutes(tmp_path: Path, inference: int, oracles: dict[str, Any]) -> None:
    """Where weights did not reach inference, it would grow by one version per optimizer step."""
    flags = (
        "--num_epochs=1",
        "--num_batches_per_epoch=1",
        "--batch_size=256",
        f"--policy_workers_per_policy={inference}",
    )
    with running(tmp_path, *OPEN, *flags, f"--train_for_seconds={LONG_S}") as command:
        command.wait_for(lambda: command.out.count("Fps is") > LONG_S / 50, "a tenth of the run", LONG_S)
        before = command.resident_mib(("sf-",))
        command.wait_for(lambda: command.out.count("Fps is") >= 0.95 * LONG_S / 5, "nearly all of it", LONG_S)
        after = command.resident_mib(("sf-",))
        finished = command.finish()  # no process and no shared memory is left, and the books balance
    assert finished.code == 0, finished.err
    reports = matches(oracles["A15"]["regex"], finished)[1:]
    lags = [float(report["lag_avg"]) for report in reports]
    assert len(lags) > 0.9 * LONG_S / 5
    slope = np.polyfit(np.arange(len(lags)), lags, 1)[0]
    assert abs(slope) * len(lags) < 1, "less than one version over the whole run"
    assert max(float(report["lag_max"]) for report in reports) < 20
    assert after["sf-"] < before["sf-"] + 16
