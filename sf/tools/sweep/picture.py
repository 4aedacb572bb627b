"""The picture of a sweep: the importance of each flag, and all trials as lines over parallel axes."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sf.errors import UsageError
from sf.tools.sweep.description import Description
from sf.tools.sweep.importance import importance
from sf.tools.sweep.trials import Interval, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LABELS = 8
PRUNED_LINE: dict[str, Any] = {"color": "grey", "linewidth": 0.8, "linestyle": "dotted"}
LABEL_BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}


def draw_sweep(
    description: Description, ranked: Sequence[tuple[Trial, Interval]], path: Path, pruned: Container[int] = ()
) -> None:
    """Writes the picture as PNG.

    Args:
        description: of the sweep.
        ranked: trials with their scores, the best one first.
        path: of the picture.
        pruned: numbers of trials that were cut short, whose scores say nothing of the importance of flags.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise UsageError('Pictures need matplotlib: pip install "sf-rl[results]"') from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, 4), layout="constrained", gridspec_kw={"width_ratios": (1, 3)}
    )
    _bars(left, *importance(description, [pair for pair in ranked if pair[0].number not in pruned]))
    _lines(right, description, ranked, pruned)
    figure.suptitle(f"{description.settings.sweep}: {len(ranked)} trials by {description.settings.objective}")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _bars(axes: Axes, shares: dict[str, float], measure: str) -> None:
    names = sorted(shares, key=lambda name: shares[name])
    axes.barh(names, [shares[name] for name in names])
    axes.set(title=f"Importance ({measure})", xlabel="share of the variance", xlim=(0, 1))


def _lines(
    axes: Axes, description: Description, ranked: Sequence[tuple[Trial, Interval]], pruned: Container[int]
) -> None:
    """The worst trials first, so that the best ones lie on top."""
    from matplotlib import colormaps

    scores = [score.mean for _, score in ranked]
    columns = [_column(description, name, [trial.flags[name] for trial, _ in ranked]) for name in description.varied]
    columns.append(_numbers(scores, is_log=False))
    shades = _numbers([description.better(score) for score in scores], is_log=False)[0]
    for index in reversed(range(len(ranked))):
        heights = [column[0][index] for column in columns]
        is_pruned = ranked[index][0].number in pruned
        style = PRUNED_LINE if is_pruned else {"color": colormaps["viridis_r"](shades[index]), "linewidth": 1.2}
        axes.plot(range(len(columns)), heights, **style)
    for place, (_, labels) in enumerate(columns):
        axes.axvline(place, color="black", linewidth=0.8)
        for height, label in labels:
            axes.text(place + 0.03, height, label, fontsize="small", va="center", bbox=LABEL_BOX)
    axes.set_xticks(range(len(columns)), [*description.varied, description.settings.objective])
    title = "All trials; darker is better" + ", dotted ones were pruned" * any(t.number in pruned for t, _ in ranked)
    axes.set(title=title, yticks=(), xlim=(-0.1, len(columns) - 0.7), ylim=(-0.05, 1.05))


Column = tuple[list[float], list[tuple[float, str]]]
"""Heights from 0 to 1, and the labels of an axis."""


def _column(description: Description, name: str, values: Sequence[Any]) -> Column:
    if name in description.ranges:
        return _numbers(values, description.ranges[name].log)
    texts = list(dict.fromkeys(json.dumps(value) for value in [*description.values[name], *values]))
    height = {text: index / max(1, len(texts) - 1) for index, text in enumerate(texts)}
    return [height[json.dumps(value)] for value in values], [(height[text], text) for text in texts[:MOST_LABELS]]


def _numbers(values: Sequence[float], is_log: bool) -> Column:
    scaled = [math.log(value) for value in values] if is_log else list(values)
    low, high = min(scaled), max(scaled)
    heights = [(value - low) / (high - low) if high > low else 0.5 for value in scaled]
    return heights, [(min(heights), f"{min(values):.4g}"), (max(heights), f"{max(values):.4g}")]
