"""The picture of policy lag: how it is distributed, where it comes from, and what it does to training."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sf.errors import ExperimentError, UsageError
from sf.report.run_files import RunFiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCES = "acting", "queued", "epochs"
SHOWN_SHARE = 0.999
"""Of the transitions; the few with larger lags would squeeze the others together."""


def draw_lag(run: RunFiles, path: Path) -> None:
    """Writes the picture as PNG.

    Raises:
        ExperimentError: the run has made no optimizer step.
        UsageError: matplotlib is not installed.
    """
    counts = run.total("lag/histogram")
    if not counts:
        raise ExperimentError(
            f"{run.name} has no lag/histogram: it has made no optimizer step, or an older sf wrote it."
        )
    try:
        import matplotlib as mpl
    except ImportError:
        raise UsageError('Pictures need matplotlib: pip install "sf-rl[results]"') from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    _histogram(left, counts)
    _sources(middle, run)
    _effects(right, run)
    figure.suptitle(f"Policy lag of {run.name}, in optimizer steps")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _histogram(axes: Axes, counts: list[int]) -> None:
    shares = np.array(counts) / sum(counts)
    most = int(np.searchsorted(shares.cumsum(), SHOWN_SHARE)) + 1
    mean = float(shares @ np.arange(len(shares)))
    axes.bar(np.arange(most), 100 * shares[:most], width=1.0, edgecolor="white", linewidth=0.3)
    axes.axvline(mean, color="black", linestyle="--", linewidth=1, label=f"mean {mean:.1f}")
    beyond = 100 * shares[most:].sum()
    title = "How old transitions are" + (f" ({beyond:.1g} % up to {len(counts) - 1})" if beyond else "")
    axes.set(title=title, xlabel="lag", ylabel="% of transitions")
    axes.legend(fontsize="small")


def _sources(axes: Axes, run: RunFiles) -> None:
    frames, _ = run.curve("lag/epochs")
    parts = [run.curve(f"lag/{source}")[1] for source in SOURCES]
    labels = [f"{source}, mean {statistics.fmean(part):.1f}" for source, part in zip(SOURCES, parts, strict=True)]
    axes.stackplot(frames, parts, labels=labels, alpha=0.85)
    axes.set(title="Where lag comes from", xlabel="frames", ylabel="mean lag", ylim=(0, None))
    axes.legend(fontsize="small", loc="lower right")


def _effects(axes: Axes, run: RunFiles) -> None:
    """Means over the optimizer steps that were summarized."""
    for kind, label in (("ESS", "effective sample size"), ("clipped", "clipped"), ("ratio", "mean importance ratio")):
        tags = run.tags(f"train/{kind}_at_lag/")
        buckets = sorted(tags, key=lambda bucket: int(bucket.partition("-")[0].rstrip("+")))
        axes.plot(
            buckets, [statistics.fmean(run.curve(tags[b])[1]) for b in buckets], marker="o", markersize=4, label=label
        )
    axes.set(title="What lag does", xlabel="lag", ylabel="share, or ratio", ylim=(0, None))
    axes.legend(fontsize="small")
