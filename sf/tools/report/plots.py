"""Parts of plots, as plain dictionaries that plotly draws."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sf.shared.arena import Array
from sf.tools.report.statistics import Estimate

Plot = dict[str, Any]
COLOURS = "#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377"
"""Paul Tol's "bright", which colour-blind readers can tell apart, on white and on black."""
DASHES = "solid", "dash", "dot"
GREY = "#8a8f98"
HEIGHT, LEGEND_LINE = 360, 16
"""Pixels."""
FROM_0 = {"rangemode": "tozero"}
"""An axis that begins at 0."""
IN_FULL = {"exponentformat": "none", "separatethousands": True}
"""Numbers as they are: 0.0005 and not 500µ."""
FEW = 30
"""Points that are marked, because a line alone does not show them."""


def plot(traces: Sequence[Plot], x: str, y: str, **layout: Any) -> Plot:
    """A whole plot; `layout` adds to the layout and, as `xaxis` and `yaxis`, to the axes with these titles."""
    axes = {
        name: {"title": {"text": title}} | look | layout.pop(name, {})
        for name, title, look in (("xaxis", x, {}), ("yaxis", y, IN_FULL))
    }
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}
    names = sum(trace.get("showlegend", layout.get("showlegend", True)) for trace in traces)
    height = HEIGHT + LEGEND_LINE * max(0, names - 4)  # a telephone shows one name in each line
    look = {"hovermode": "x unified", "legend": legend, "height": height}
    return {"data": list(traces), "layout": look | axes | layout}


def line(x: Array, y: Array, name: str, index: int, **style: Any) -> Plot:
    """A curve in the colour of its index; `style` adds to that of the line."""
    dash = DASHES[index // len(COLOURS) % len(DASHES)]
    look = {"color": colour(index), "width": 2.2, "dash": dash} | style
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > FEW else "lines+markers",
        "name": html.escape(name),
        "x": numbers(x),
        "y": numbers(y),
        "line": look,
    }


def faint(trace: Plot) -> Plot:
    """The same curve behind others."""
    return trace | {"opacity": 0.5, "hoverinfo": "skip", "mode": "lines", "showlegend": False}


def band(x: Array, low: Array, high: Array, index: int) -> Plot:
    """The area between two curves."""
    red, green, blue = (int(colour(index)[place : place + 2], 16) for place in (1, 3, 5))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": numbers(np.concatenate([x, x[::-1]])),
        "y": numbers(np.concatenate([high, low[::-1]])),
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.2)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def bars(rows: Sequence[str], values: Mapping[str, Sequence[float | None]], x: str, grey: str = "") -> Plot:
    """Stacked horizontal bars, the first row on top; `grey` is the name of a part without a colour."""
    common = {"type": "bar", "orientation": "h", "y": [html.escape(row).replace("\n", "<br>") for row in rows]}
    traces = [
        common | {"name": name, "x": numbers(each), "marker": {"color": GREY if name == grey else colour(index)}}
        for index, (name, each) in enumerate(values.items())
    ]
    return plot(traces if rows else [], x, "", barmode="stack", hovermode="closest", **_of_rows(len(rows)))


def intervals(rows: Mapping[str, tuple[Estimate, Array, int]], x: str) -> Plot:
    """Estimates as points with their intervals, and the scores behind them; the number is that of the colour."""
    traces = []
    for label, (one, scores, index) in rows.items():
        name = html.escape(label)
        common = {"type": "scatter", "mode": "markers", "name": name}
        runs = {"color": colour(index), "size": 6, "opacity": 0.55}
        error = {"type": "data", "symmetric": False, "thickness": 3, "width": 0}
        ends = {"array": numbers([one.high - one.iqm]), "arrayminus": numbers([one.iqm - one.low])}
        traces += [
            common | {"x": numbers(scores), "y": [name] * len(scores), "marker": runs},
            common
            | {"x": numbers([one.iqm]), "y": [name], "marker": {"color": colour(index), "size": 13}}
            | {"error_x": error | ends},
        ]
    return plot(traces, x, "", showlegend=False, hovermode="closest", **_of_rows(len(rows)))


def numbers(values: Any) -> list[float | None]:
    """Plain numbers with five digits or all before the point, so that the page stays small."""
    return [None if value is None else _rounded(float(value)) for value in values]


def colour(index: int) -> str:
    """That of a group or of a part."""
    return COLOURS[index % len(COLOURS)]


def _rounded(value: float) -> float:
    return round(value) if abs(value) >= 1e4 else float(f"{value:.5g}")


def _of_rows(number: int) -> Plot:
    return {
        "height": 130 + 38 * number,
        "yaxis": {"range": [number - 0.4, -0.6], "automargin": True, "showgrid": False, "ticklabelstandoff": 6},
    }
