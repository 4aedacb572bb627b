"""Interquartile means and their intervals, against slow loops and another package."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sf.shared.arena import Array
from sf.tools.report.statistics import GRID, band_of_runs, estimate, interquartile_mean, thinned, together


def slow_interquartile_mean(values: list[float]) -> float:
    """Without a quarter of the values at each end; as many whole values as fit into a quarter."""
    left = sorted(values)
    for _ in range(int(0.25 * len(values))):
        left.remove(min(left))
        left.remove(max(left))
    return sum(left) / len(left)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 6.0], 3.0),
        ([0.0, 1.0, 3.0, 100.0], 2.0),
        ([5.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 1000.0], 4.5),
    ],
)
def test_interquartile_mean_of_known_values(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(values)) == expected


@pytest.mark.parametrize("number", range(1, 14))
def test_interquartile_mean_is_that_of_a_slow_loop(number: int) -> None:
    values = np.random.default_rng(number).normal(size=(4, number))
    expected = [slow_interquartile_mean(list(row)) for row in values]
    assert np.allclose(interquartile_mean(values), expected)
    assert np.allclose(interquartile_mean(values.T, 0), expected)


def test_interval_is_that_of_all_samples_that_can_be_drawn() -> None:
    """Two tasks with three runs each can be drawn in 729 ways, all equally likely: the exact bootstrap."""
    first, second = [1.0, 2.0, 4.0], [10.0, 30.0, 70.0]
    means = [
        slow_interquartile_mean([*one, *two])
        for one in itertools.product(first, repeat=3)
        for two in itertools.product(second, repeat=3)
    ]
    found = estimate([np.array(first), np.array(second)])
    assert found.iqm == slow_interquartile_mean(first + second)
    assert found.low == pytest.approx(np.percentile(means, 2.5), abs=0.5)
    assert found.high == pytest.approx(np.percentile(means, 97.5), abs=0.5)


def test_runs_are_drawn_within_their_task() -> None:
    """Without strata, samples of the easy task alone would make the interval reach from 0 to 100."""
    found = estimate([np.zeros(3), np.full(3, 100.0)])
    assert found == (50.0, 50.0, 50.0)


def test_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        found = estimate([random.normal(size=20)])
        hits += found.low <= 0.0 <= found.high
    assert 0.85 <= hits / 200 <= 0.99


def test_one_run_has_no_width() -> None:
    assert estimate([np.array([3.0])]) == (3.0, 3.0, 3.0)


def test_band_is_the_interval_of_each_point() -> None:
    curves = np.random.default_rng(0).normal(size=(12, 3)).cumsum(1)
    middle, low, high = band_of_runs(curves)
    for place in range(3):
        exact = estimate([curves[:, place]])
        assert middle[place] == pytest.approx(exact.iqm)
        close = 0.15 * (exact.high - exact.low)
        assert low[place] == pytest.approx(exact.low, abs=close)
        assert high[place] == pytest.approx(exact.high, abs=close)


def test_thinned_curve_keeps_its_mean_and_if_asked_its_extremes() -> None:
    x, y = np.arange(10_000.0), np.random.default_rng(0).normal(size=10_000)
    assert thinned(x[:500], y[:500]).shape == (2, 500)
    means, highest = thinned(x, y), thinned(x, y, np.max)
    assert means.shape == (2, 500)
    assert means.mean(1) == pytest.approx([x.mean(), y.mean()])
    assert highest[1].max() == y.max()
    assert (highest[1] >= means[1]).all()


def test_curves_come_together_where_all_have_values() -> None:
    first = np.array([[0.0, 10.0, 20.0], [0.0, 1.0, 2.0]])
    second = np.array([[5.0, 15.0, 40.0], [50.0, 51.0, 53.5]])
    x, lines = together([first, second])
    assert (x[0], x[-1], len(x)) == (5.0, 20.0, GRID)
    assert lines[:, 0].tolist() == [0.5, 50.0]
    assert lines[:, -1].tolist() == [2.0, 51.5]
    alone, (values,) = together([first])
    assert (alone.tolist(), values.tolist()) == (first[0].tolist(), first[1].tolist())


def test_curves_that_never_meet_have_one_common_place() -> None:
    x, lines = together([np.array([[100.0], [1.0]]), np.array([[103.0], [3.0]])])
    assert x.tolist() == [100.0]
    assert lines.tolist() == [[1.0], [3.0]]


@pytest.mark.slow
def test_interval_is_that_of_rliable() -> None:
    library = pytest.importorskip("rliable.library", exc_type=ImportError)
    metrics = pytest.importorskip("rliable.metrics", exc_type=ImportError)
    scores = np.random.default_rng(1).gamma(2.0, 50.0, size=(10, 3))  # runs of three tasks

    def aggregate(drawn: Array) -> Array:
        return np.array([metrics.aggregate_iqm(drawn)])

    means, intervals = library.get_interval_estimates({"ours": scores}, aggregate, reps=20_000)
    found = estimate(list(scores.T))
    assert found.iqm == pytest.approx(means["ours"][0])
    width = found.high - found.low
    assert [found.low, found.high] == pytest.approx(intervals["ours"][:, 0].tolist(), abs=0.03 * width)
