"""Numbers that sum up the episodes of one policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sf.console import rounded
from sf.errors import EnvError
from sf.evaluator.tally import Episodes
from sf.shared.arena import Array

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
RESAMPLES_AT_ONCE = 100


@dataclass(frozen=True)
class ReturnSummary:
    """Statistics of returns, and the mean length of an episode."""

    num_episodes: int
    mean: float
    std: float
    low: float
    high: float
    """Bounds of the mean at a confidence of 95 %."""
    quantiles: tuple[float, ...]
    """At `QUANTILES`."""
    minimum: float
    maximum: float
    mean_length: float
    num_cut: int = 0
    """Episodes that `--max_episode_steps` has cut."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Numbers of the environment's own by name."""
    agents: Mapping[int, float] = field(default_factory=dict)
    """Mean return of each agent, where several share an environment."""


class Metric(NamedTuple):
    """A number of the environment's own over the episodes that have it."""

    mean: float
    low: float
    high: float
    """Bounds of the mean at a confidence of 95 %."""
    num_episodes: int


def summarize(episodes: Episodes) -> ReturnSummary:
    """The summary of these episodes.

    Raises:
        EnvError: there is none.
    """
    if not episodes.rewards:
        raise EnvError(
            "No agent of a policy has come in the episodes that were played, so it has no score. Play more of them "
            "with --num_episodes."
        )
    rewards = np.array(episodes.rewards)
    low, high = bootstrap_interval(rewards)
    return ReturnSummary(
        len(rewards),
        float(rewards.mean()),
        float(rewards.std()),
        low,
        high,
        tuple(float(x) for x in np.quantile(rewards, QUANTILES)),
        float(rewards.min()),
        float(rewards.max()),
        float(np.mean(episodes.lengths)),
        episodes.num_cut,
        metrics_of(episodes.metrics),
        returns_of_agents(episodes),
    )


def returns_of_agents(episodes: Episodes) -> dict[int, float]:
    """Agent to its mean return; empty where an environment has one agent."""
    agents, rewards = np.array(episodes.agents), np.array(episodes.rewards)
    found = np.unique(agents).tolist() if episodes.num_agents > 1 else []
    return {agent: float(rewards[agents == agent].mean()) for agent in found}


def metrics_of(episodes: Sequence[Mapping[str, float]]) -> dict[str, Metric]:
    """Each metric that any of the episodes has."""
    found: dict[str, list[float]] = {}
    for metrics in episodes:
        for name, value in metrics.items():
            found.setdefault(name, []).append(value)
    return {
        name: Metric(float(np.mean(values)), *bootstrap_interval(np.array(values)), len(values))
        for name, values in found.items()
    }


def bootstrap_interval(values: Array, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Percentile interval of the mean (Efron and Tibshirani 1993, chapter 13); the same values give the same one."""
    random = np.random.default_rng(0)
    means: list[float] = []
    for _ in range(NUM_RESAMPLES // RESAMPLES_AT_ONCE):
        rows = random.integers(len(values), size=(RESAMPLES_AT_ONCE, len(values)))
        means.extend(values[rows].mean(1))
    outside = (1 - confidence) / 2
    low, high = np.quantile(means, (outside, 1 - outside))
    return float(low), float(high)


def cut_note(num_cut: int, longest: int | None) -> str:
    """A sentence about episodes that were cut."""
    episodes = f"{num_cut} episode was" if num_cut == 1 else f"{num_cut} episodes were"
    return f"{episodes} cut after {longest:,} steps (--max_episode_steps)"


def lines(summary: ReturnSummary, env_id: str, longest: int | None = None) -> Sequence[str]:
    """The lines of the command on one policy; episodes were cut at `longest` steps."""
    quantiles = ", ".join(
        f"{quantile:.0%} {rounded(x)}" for quantile, x in zip(QUANTILES, summary.quantiles, strict=True)
    )
    means = ", ".join(f"agent {agent} {rounded(mean)}" for agent, mean in summary.agents.items())
    by_agent = [f"mean of each agent: {means}"] if means else []
    cut = [cut_note(summary.num_cut, longest)] if summary.num_cut else []
    return (
        f"{summary.num_episodes} episodes of {env_id}: reward {rounded(summary.mean)} +- {rounded(summary.std)} "
        f"(min {rounded(summary.minimum)}, max {rounded(summary.maximum)}), length {summary.mean_length:.1f}",
        f"mean with {CONFIDENCE:.0%} confidence from {rounded(summary.low)} to {rounded(summary.high)}; "
        f"quantiles {quantiles}",
        *(
            f"env/{name} {rounded(one.mean)}, with {CONFIDENCE:.0%} confidence from {rounded(one.low)} to "
            f"{rounded(one.high)}" + (f" (in {one.num_episodes} episodes)" * (one.num_episodes < summary.num_episodes))
            for name, one in summary.metrics.items()
        ),
        *by_agent,
        *cut,
    )


def table(rows: Sequence[tuple[str, ReturnSummary]]) -> str:
    """Several policies side by side, the best one first."""
    head = ("policy", "mean", "low", "high", "std", "min", "median", "max", "length")
    cells: list[tuple[str, ...]] = [head]
    for name, one in sorted(rows, key=lambda row: -row[1].mean):
        numbers = (one.mean, one.low, one.high, one.std, one.minimum, one.quantiles[2], one.maximum, one.mean_length)
        cells.append((name, *(rounded(number, 2) for number in numbers)))
    return aligned(cells)


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """A line for each row; the first column is aligned at its left, and all others at their right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)
