"""A curve made of characters: each Braille character holds two columns and four rows of dots."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_DOTS = (0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80)
"""Bits of a Braille character, from top to bottom, left and right."""
_BLANK = 0x2800


def curve_text(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Lines of text that show a curve, with its highest and its lowest value at the left.

    Args:
        points: places, which grow, and values; finite.
        width: characters of a line.
        height: lines, at least 2.
    """
    if not points:
        return ["no episode has ended yet".ljust(width)[:width], *(" " * width for _ in range(height - 1))]
    low, high = min(value for _, value in points), max(value for _, value in points)
    labels = [_short(high), *("" for _ in range(height - 2)), _short(low)]
    margin = max(map(len, labels)) + 1
    columns, rows = 2 * max(1, width - margin), 4 * height
    places, values = np.array(points, dtype=float).T
    shown = np.interp(np.linspace(places[0], places[-1], columns), places, values)
    heights = (high - shown) / (high - low) if high > low else np.full(columns, 0.5)
    dots = np.rint((rows - 1) * heights).astype(int)
    cells = [[0] * (columns // 2) for _ in range(height)]
    for column, dot in enumerate(dots.tolist()):
        before = int(dots[max(0, column - 1)])
        for reached in range(min(dot, before), max(dot, before) + 1):  # also what lies between two columns
            cells[reached // 4][column // 2] |= _DOTS[column % 2][reached % 4]
    drawn = ["".join(chr(_BLANK + bits) for bits in line) for line in cells]
    return [f"{label:>{margin - 1}} {line}" for label, line in zip(labels, drawn, strict=True)]


def _short(value: float) -> str:
    """With four digits, and no more than seven characters."""
    return f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 or not math.isfinite(value) else f"{value:.1e}"
