"""What is tried next, for objectives that are known."""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf.errors import ExperimentError, UsageError
from sf.tools.sweep.description import Description
from sf.tools.sweep.record import SweepRecord
from sf.tools.sweep.search import make_search
from sf.tools.sweep.trials import interval
from tests.helpers.sweeps import carried_out, described

RATES = "[ranges]\nlearning_rate = { low = 1e-5, high = 1e-1, log = true }\n"


def constant(flags: dict[str, Any], seed: int) -> float:
    return 1.0


def distance(flags: dict[str, Any], seed: int) -> float:
    """Best at a learning rate of 0.001."""
    return -abs(math.log10(flags["learning_rate"]) + 3)


def test_grid_tries_every_combination_with_every_seed(tmp_path: Path) -> None:
    values = '[values]\ngamma = [0.9, 0.99]\nencoder_mlp_layers = [[32], [64, 64], [8]]\nrnn_type = ["gru"]\n'
    trials, runs = carried_out(described(tmp_path, values, "seeds = [4, 7]"), constant)
    expected = itertools.product([0.9, 0.99], [[32], [64, 64], [8]], ["gru"])
    assert [tuple(trial.flags.values()) for trial in trials] == list(expected)
    assert [(run.trial, run.seed) for run in runs] == [(trial, seed) for trial in range(6) for seed in (4, 7)]
    assert runs[2].flags == ("--env=CartPole-v1", "--gamma=0.9", "--encoder_mlp_layers", "64", "64", "--rnn_type=gru")


def test_grid_without_values_is_one_trial_of_all_seeds(tmp_path: Path) -> None:
    _, runs = carried_out(described(tmp_path, "", "seeds = [1, 2, 3]"), constant)
    assert [(run.trial, run.seed) for run in runs] == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("search", ["grid", "random", "tpe"])
def test_sweep_goes_on_where_it_was_stopped(search: str, tmp_path: Path) -> None:
    if search == "tpe":
        pytest.importorskip("optuna")
    description = described(tmp_path, "[values]\ngamma = [0.9, 0.95, 0.99, 1.0]\n", "seeds = [1, 2]\ntrials = 4")
    _, first = carried_out(description, constant, search, most=3)
    trials, second = carried_out(description, constant, search)
    assert [(run.trial, run.seed) for run in first + second] == [(trial, seed) for trial in range(4) for seed in (1, 2)]
    assert sorted(trial.flags["gamma"] for trial in trials) == [0.9, 0.95, 0.99, 1.0]
    assert carried_out(description, constant, search)[1] == []


@pytest.mark.more
def test_random_trials_do_not_depend_on_where_it_was_stopped(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = (described(tmp_path / name, RATES, "trials = 6") for name in ("one", "two"))
    carried_out(one, constant, most=2)
    flags = [trial.flags for trial in carried_out(one, constant)[0]]
    assert flags == [trial.flags for trial in carried_out(two, constant)[0]]
    (tmp_path / "three").mkdir()
    other = described(tmp_path / "three", RATES, "trials = 6\nsearch_seed = 1")
    assert not any(trial.flags in flags for trial in carried_out(other, constant)[0])


@pytest.mark.more
def test_random_draws_fill_ranges_evenly(tmp_path: Path) -> None:
    ranges = f"{RATES}gae_lambda = {{ low = 0.8, high = 1.0 }}\nnum_epochs = {{ low = 1, high = 4, integer = true }}\n"
    trials, _ = carried_out(described(tmp_path, ranges, "trials = 200"), constant)
    rates = np.log10([trial.flags["learning_rate"] for trial in trials])
    assert np.histogram(rates, bins=4, range=(-5, -1))[0] == pytest.approx([50] * 4, abs=20)
    lambdas = [trial.flags["gae_lambda"] for trial in trials]
    assert np.histogram(lambdas, bins=4, range=(0.8, 1))[0] == pytest.approx([50] * 4, abs=20)
    epochs = [trial.flags["num_epochs"] for trial in trials]
    assert np.bincount(epochs, minlength=5) == pytest.approx([0, 50, 50, 50, 50], abs=20)
    assert all(type(each) is int for each in epochs)


def test_random_search_ends_when_all_is_tried(tmp_path: Path) -> None:
    description = described(tmp_path, "[values]\ngamma = [0.9, 0.99]\n", "trials = 50")
    assert len(carried_out(description, constant, "random")[0]) == 2


@pytest.mark.more
def test_tpe_finds_more_than_random_search(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    means = {}
    for search in ("random", "tpe"):
        (tmp_path / search).mkdir()
        trials, _ = carried_out(described(tmp_path / search, RATES, "trials = 40"), distance, search)
        means[search] = statistics.fmean(distance(dict(trial.flags), 1) for trial in trials[20:])
    assert means["tpe"] > means["random"] / 2, "half as far away from the best"


def test_tpe_minimises_on_request_and_learns_from_earlier_starts(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    top = "minimise = true\ntrials = 40"
    carried_out(described(tmp_path, RATES, top), lambda flags, seed: -distance(flags, seed), "random", most=30)
    trials, runs = carried_out(described(tmp_path, RATES, top), lambda flags, seed: -distance(flags, seed), "tpe")
    assert [run.trial for run in runs] == list(range(30, 40))
    later = statistics.fmean(distance(dict(trial.flags), 1) for trial in trials[30:])
    assert later > statistics.fmean(distance(dict(trial.flags), 1) for trial in trials[:30]) / 2


@pytest.mark.parametrize("search", ["grid", "tpe"])
def test_failed_runs_are_tried_again_by_the_next_start(search: str, tmp_path: Path) -> None:
    if search == "tpe":
        pytest.importorskip("optuna")
    description = described(tmp_path, "[values]\ngamma = [0.9, 0.95, 0.99]\n", "trials = 3")
    carried_out(description, lambda flags, seed: None if flags["gamma"] == 0.95 else 1.0, search)
    trials, runs = carried_out(description, constant, search)
    assert [trials[run.trial].flags["gamma"] for run in runs] == [0.95]


def ranking(description: Description) -> list[tuple[float, float]]:
    record = SweepRecord(description, read_only=True)
    return [(trial.flags["gamma"], score.mean) for trial, score in record.ranked()]


def test_trials_are_ranked_by_their_mean_over_seeds(tmp_path: Path) -> None:
    values = {0.9: (1.0, 2.0), 0.95: (5.0, None), 0.99: (None, None), 1.0: (9.0, 0.0)}
    tables = "[values]\ngamma = [0.9, 0.95, 0.99, 1.0]\n"
    description = described(tmp_path, tables, "seeds = [0, 1]")
    carried_out(description, lambda flags, seed: values[flags["gamma"]][seed])
    assert ranking(description) == [(1.0, 4.5), (0.9, 1.5), (0.95, 5.0)], "one seed says less than two"
    description = described(tmp_path, tables, "seeds = [0, 1]\nminimise = true")
    assert ranking(description) == [(0.9, 1.5), (1.0, 4.5), (0.95, 5.0)]


def test_interval_is_that_of_student() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.count) == (2.0, 3)
    half = 4.303 * 1.0 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))
    assert interval([3.0, 3.0]).low == 3.0
    many = interval([float(index % 2) for index in range(100)])
    assert many.high - many.mean == pytest.approx(1.96 * statistics.stdev([0, 1] * 50) / 10)


def test_other_values_go_on_and_another_sweep_is_refused(tmp_path: Path) -> None:
    carried_out(described(tmp_path, "[values]\ngamma = [0.9, 0.99]\n"), constant)
    trials, runs = carried_out(described(tmp_path, "[values]\ngamma = [0.95, 0.9]\n"), constant)
    assert [trial.flags["gamma"] for trial in trials] == [0.9, 0.99, 0.95]
    assert [run.trial for run in runs] == [2]
    other = described(tmp_path, "rollout = 16\n[values]\ngamma = [0.9]\n")
    with pytest.raises(UsageError, match=r'was begun with flags = .*"CartPole-v1"}, .* give the sweep another name'):
        carried_out(other, constant)
    with pytest.raises(UsageError, match=r'was begun with varied = \["gamma"\], and the file has \["rollout"\]'):
        carried_out(described(tmp_path, "[values]\nrollout = [16]\n"), constant)
    with pytest.raises(UsageError, match='was begun with objective = "reward", and the file has "frames"'):
        carried_out(described(tmp_path, "[values]\ngamma = [0.9]\n", 'objective = "frames"'), constant)


def test_only_one_sweep_at_a_time_has_a_directory(tmp_path: Path) -> None:
    description = described(tmp_path, "")
    record = SweepRecord(description)
    with pytest.raises(ExperimentError, match="Another sf-sweep works in"):
        SweepRecord(description)
    record.close()
    SweepRecord(description).close()


def test_damaged_results_are_told(tmp_path: Path) -> None:
    description = described(tmp_path, "")
    carried_out(description, constant)
    (description.directory / "results.json").write_text('{"flags": {')
    with pytest.raises(ExperimentError, match=r"results\.json is damaged"):
        SweepRecord(description, read_only=True)


def test_missing_optuna_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    description = described(tmp_path, RATES)
    record = SweepRecord(description)
    with pytest.raises(UsageError, match=r'--search=tpe needs Optuna: pip install "sf-rl\[sweep\]"'):
        make_search("tpe", description, record)
    record.close()
