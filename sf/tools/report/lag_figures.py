"""Plots of policy lag: how old data is, where that comes from, and what it does to training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sf.shared.arena import Array
from sf.tools.report.groups import RunGroup
from sf.tools.report.plots import FROM_0, GREY, Plot, band, bars, colour, line, numbers, plot
from sf.tools.report.statistics import together

SOURCES = "acting", "queued", "epochs"
EFFECTS = {"ESS": "effective sample size", "clipped": "clipped share", "ratio": "mean importance ratio"}
SHOWN_SHARE = 0.999
"""Share of the transitions that is shown; the few with larger lags would squeeze the others together."""
LAG = "policy lag, optimizer steps"


def lag_over_time(groups: Sequence[RunGroup]) -> Plot:
    """Mean lag of minibatches; of one group with its range, from the lowest minimum to the highest maximum."""
    traces: list[Plot] = []
    for group in groups:
        tag = "train/version_diff"
        curves = [group.curves(f"{tag}_min", reduce=np.min), group.curves(f"{tag}_avg")]
        curves.append(group.curves(f"{tag}_max", reduce=np.max))
        if not all(curves):
            continue
        (x, least), (_, average), (_, most) = map(together, curves)
        mean = line(x, average.mean(0), group.label, group.index)
        if len(groups) > 1:
            traces.append(mean)
            continue
        traces += [
            band(x, least.min(0), most.max(0), 0),
            line(x, most.max(0), "max", 0, width=1, dash="dot") | {"mode": "lines"},
            mean | {"name": "avg"},
            line(x, least.min(0), "min", 0, width=1, dash="dash") | {"mode": "lines"},
        ]
    return plot(traces, "frames", LAG, xaxis=FROM_0, yaxis=FROM_0)


def lag_histogram(groups: Sequence[RunGroup]) -> Plot:
    """Share of the transitions of all runs of a group by their lag."""
    shares = [(group, counts / counts.sum()) for group in groups if (counts := _lags(group)).any()]
    shown = [int(np.searchsorted(share.cumsum(), SHOWN_SHARE)) + 1 for _, share in shares]
    traces, layout = [], {}
    for group, share in shares:
        mean, percent = float(share @ np.arange(len(share))), 100 * share[: max(shown)]
        lags = np.arange(len(percent))
        if len(groups) == 1:
            bar = {"type": "bar", "name": "transitions", "x": numbers(lags), "y": numbers(percent)}
            traces.append(bar | {"marker": {"color": colour(0)}})
            layout = _marked(mean)
        else:
            label = f"{group.label}, mean {mean:.1f}"
            traces.append(line(lags, percent, label, group.index, shape="hvh") | {"mode": "lines"})
    return plot(traces, LAG, "% of transitions", bargap=0.05, **layout)


def lag_sources(groups: Sequence[RunGroup]) -> Plot:
    """Mean lag by source: over frames for one group, a bar for each of several ones."""
    means = {source: [group.mean(f"lag/{source}") for group in groups] for source in SOURCES}
    if not any(mean for each in means.values() for mean in each):
        return plot([], "", "")
    curves = {source: together(groups[0].curves(f"lag/{source}")) for source in SOURCES if means[source][0] is not None}
    if len(groups) > 1 or min(len(x) for x, _ in curves.values()) < 2:  # an area needs two points
        return bars([group.label for group in groups], means, "mean policy lag")
    traces = [
        line(x, lines.mean(0), f"{source}, mean {means[source][0]:.1f}", index) | {"stackgroup": "lag", "mode": "lines"}
        for index, (source, (x, lines)) in enumerate(curves.items())
    ]
    return plot(traces, "frames", "mean policy lag", xaxis=FROM_0, yaxis=FROM_0)


def lag_effects(groups: Sequence[RunGroup]) -> Plot:
    """Means over optimizer steps by lag; of several groups the effective sample size alone."""
    kinds = EFFECTS if len(groups) == 1 else {"ESS": EFFECTS["ESS"]}
    tags = {bucket for group in groups for run in group.runs for bucket in run.tags("train/ESS_at_lag/")}
    buckets = sorted(tags, key=lambda bucket: int(bucket.partition("-")[0].rstrip("+")))
    traces = []
    for group in groups:
        for index, (kind, words) in enumerate(kinds.items()):
            means = {bucket: group.mean(f"train/{kind}_at_lag/{bucket}") for bucket in buckets}
            there = {bucket: mean for bucket, mean in means.items() if mean is not None}
            name, index = (words, index) if len(groups) == 1 else (group.label, group.index)
            values = np.array(list(there.values()))
            traces.append(line(np.arange(len(there)), values, name, index) | {"x": list(there)})
    axis = {"type": "category", "categoryorder": "array", "categoryarray": buckets}
    y = "share, or ratio" if len(groups) == 1 else "effective sample size"
    return plot(traces if buckets else [], LAG, y, xaxis=axis, yaxis=FROM_0)


def _lags(group: RunGroup) -> Array:
    """Counts of lag 0, 1, 2, ... over all runs."""
    totals = [run.total("lag/histogram") for run in group.runs]
    counts = np.zeros(max(map(len, totals)), np.int64)
    for total in totals:
        counts[: len(total)] += total
    return counts


def _marked(mean: float) -> Plot:
    """Layout with a line at the mean."""
    at = {"yref": "paper", "y0": 0, "y1": 1, "x0": mean, "x1": mean}
    text = {"x": mean, "yref": "paper", "y": 1, "yanchor": "bottom", "text": f"mean {mean:.1f}", "showarrow": False}
    return {"shapes": [{"type": "line", "line": {"dash": "dash", "color": GREY}} | at], "annotations": [text]}
