"""The page: one HTML file that needs no network."""

from __future__ import annotations

import base64
import gzip
import html
import importlib.util
import json
from collections.abc import Collection, Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from string import Template

from sf import __version__
from sf.errors import UsageError
from sf.tools.report.figures import BY_TIME, Figure
from sf.tools.report.groups import RunGroup
from sf.tools.report.populations import pools
from sf.tools.report.sections import configuration, faults, reproduction, video
from sf.tools.report.states import state_bars
from sf.tools.report.verdict import title_of, verdict

WIDE = "reward", "scores"
"""Beginnings of the names of figures over both columns."""
REASONS = {
    "lag-histogram": "policy lag: no optimizer step has been counted yet",
    "time-shares": "where the time went: this comes with the end of a run",
}


def make_page(
    groups: Sequence[RunGroup], figures: Sequence[Figure], now: datetime, renewed_s: int | None = None
) -> str:
    """The HTML.

    Args:
        groups: of the runs.
        figures: plots.
        now: when the runs were read.
        renewed_s: seconds after which a browser loads the page again; None if it stays as it is.

    Raises:
        UsageError: plotly is not installed.
    """
    runs = [run for group in groups for run in group.runs]
    names = [figure.name for figure in figures]
    plots = [_plot(figure, names) for figure in figures if not figure.name.endswith(BY_TIME)]
    missing = "; ".join(reason for name, reason in REASONS.items() if name not in names)
    told = f'<section class="wide soft">Not shown are {missing}.</section>' if missing else ""
    cards = [*plots, told, f'<div class="stack">{faults(runs)}{video(runs)}</div>', pools(runs)]
    cards += [configuration(groups), reproduction(runs)]
    title, top = html.escape(title_of(groups)), state_bars(runs, now) + verdict(groups)
    data = json.dumps({figure.name: figure.plot for figure in figures}, separators=(",", ":"))
    return Template((files("sf.tools.report") / "page.html").read_text(encoding="utf-8")).substitute(
        title=title,
        renewal="" if renewed_s is None else f'<meta http-equiv="refresh" content="{renewed_s}">\n',
        body=f'<h1>{title}</h1>\n{top}\n<div class="grid">\n{"".join(cards)}\n</div>',
        footer=f"Made by sf {__version__} on {now:%Y-%m-%d %H:%M}. Long curves are thinned to means of neighbours.",
        plots=data.replace("<", "\\u003c"),
        plotly=_library(),
    )


def _plot(figure: Figure, names: Collection[str]) -> str:
    """A card; with a switch if there is the same over wall time."""
    place, buttons = f"plot-{figure.name}", ""
    if figure.name + BY_TIME in names:
        choices = (figure.name, "frames", "true"), (figure.name + BY_TIME, "wall time", "false")
        buttons = "".join(
            f'<button type="button" data-place="{place}" data-plot="{name}" aria-pressed="{pressed}">{text}</button>'
            for name, text, pressed in choices
        )
    head = f'<h2>{html.escape(figure.title)}</h2><span class="switch">{buttons}</span>'
    return (
        f'<section class="figure{" wide" * figure.name.startswith(WIDE)}"><div class="head">{head}</div>'
        f'<p class="soft">{html.escape(figure.about)}</p>'
        f'<div class="plot" id="{place}" data-plot="{figure.name}"></div></section>\n'
    )


def _library() -> str:
    """The JavaScript of plotly, compressed."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError('Reports need plotly: pip install "sf-rl[report]"')
    code = (Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(code, 9, mtime=0)).decode()
