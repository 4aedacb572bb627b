"""Scores of several runs with their intervals, and curves that are brought together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sf.shared.arena import Array

REPETITIONS = 10_000
"""Repetitions of the bootstrap for a score."""
REPETITIONS_OF_BANDS = 1000
"""For each point of a curve."""
CONFIDENCE = 2.5, 97.5
"""Percentiles."""
MOST_POINTS = 500
"""Most points of a curve on a screen."""
GRID = 200
"""Points of a curve of several runs."""


class Estimate(NamedTuple):
    """An interquartile mean with its interval at a confidence of 95 %."""

    iqm: float
    low: float
    high: float


def interquartile_mean(values: Array, axis: int = -1) -> Array:
    """The mean without the lowest and the highest quarter, each rounded down to whole values.

    Args:
        values: [..., n, ...] with n along the axis; fewer than four are all used.
        axis: which is averaged over.
    """
    number = values.shape[axis]
    cut = number // 4
    kept = np.arange(cut, number - cut)
    mean: Array = np.take(np.sort(values, axis), kept, axis).mean(axis)
    return mean


def estimate(strata: Sequence[Array]) -> Estimate:
    """Interquartile mean of all scores with a stratified bootstrap interval (Agarwal et al. 2021, arXiv:2108.13264).

    Args:
        strata: for each task the scores of its runs [n]; runs are drawn again within their task.
    """
    random = np.random.default_rng(0)
    drawn = [scores[random.integers(len(scores), size=(REPETITIONS, len(scores)))] for scores in strata]
    low, high = np.percentile(interquartile_mean(np.concatenate(drawn, 1)), CONFIDENCE)
    return Estimate(float(interquartile_mean(np.concatenate(strata))), float(low), float(high))


def band_of_runs(curves: Array) -> tuple[Array, Array, Array]:
    """Interquartile mean and bootstrap interval of each point.

    Args:
        curves: [runs, points].

    Returns:
        Mean, lower and upper end, each [points].
    """
    number = len(curves)
    chosen = np.random.default_rng(0).integers(number, size=(REPETITIONS_OF_BANDS, number))
    means = np.array([interquartile_mean(curves[rows], 0) for rows in chosen])
    low, high = np.percentile(means, CONFIDENCE, axis=0)
    return interquartile_mean(curves, 0), low, high


def thinned(x: Array, y: Array, reduce: Callable[[Array], float] = np.mean, most: int = MOST_POINTS) -> Array:
    """At most so many points [2, m]: means of neighbours, or for y something else of them such as their maximum."""
    if len(x) <= most:
        return np.array([x, y])
    edges = np.linspace(0, len(x), most + 1).astype(int)
    parts = [slice(*edges[index : index + 2]) for index in range(most)]
    return np.array([[x[part].mean() for part in parts], [reduce(y[part]) for part in parts]])


def together(curves: Sequence[Array]) -> tuple[Array, Array]:
    """Curves of several runs at common places, where all of them have values.

    Args:
        curves: each [2, n]: x, which rises, and y.

    Returns:
        x [m], and y [runs, m].
    """
    if len(curves) == 1:
        return curves[0][0], curves[0][1:]
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.linspace(first, last, GRID) if first < last else np.array([last])
    return grid, np.array([np.interp(grid, x, y) for x, y in curves])
