"""Plots as PNG files, drawn by the browser that kaleido finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sf.errors import UsageError
from sf.tools.report.figures import Figure

WIDTH, HEAD, SCALE = 760, 60, 2
AXIS = {"gridcolor": "#e1e4e8", "linecolor": "#e1e4e8", "zerolinecolor": "#e1e4e8", "automargin": True}
LOOK = {
    "paper_bgcolor": "white",
    "plot_bgcolor": "white",
    "font": {"family": "DejaVu Sans, sans-serif", "size": 13, "color": "#1c2128"},
    "xaxis": AXIS,
    "yaxis": AXIS,
}


def write_pictures(figures: Sequence[Figure], directory: Path) -> None:
    """Writes each plot under its name.

    Raises:
        UsageError: kaleido, or a browser, is missing.
    """
    try:
        import kaleido
        from kaleido.errors import BrowserFailedError, ChromeNotFoundError
    except ImportError:
        raise UsageError('PNGs need kaleido: pip install "sf-rl[report]"') from None
    orders = [_order(figure, directory / f"{figure.name}.png") for figure in figures]
    try:
        kaleido.write_fig_from_object_sync(orders, kopts={"mathjax": False}, cancel_on_error=True)
    except (BrowserFailedError, ChromeNotFoundError):
        raise UsageError(
            "PNGs need Chrome or Chromium, and none could be started. Install the package chromium, or run "
            "kaleido_get_chrome."
        ) from None


def _order(figure: Figure, path: Path) -> dict[str, Any]:
    own = figure.plot["layout"]
    title = {"text": figure.title, "x": 0.01, "xanchor": "left", "y": 0.98, "yanchor": "top", "font": {"size": 16}}
    margin = {"l": 20, "r": 20, "t": 30 + HEAD, "b": 20}
    layout = own | {"template": {"layout": LOOK}, "title": title, "margin": margin}
    size = {"width": WIDTH, "height": own["height"] + HEAD}
    return {
        "fig": {"data": figure.plot["data"], "layout": layout | size},
        "path": path,
        "opts": {"format": "png", "scale": SCALE} | size,
    }
