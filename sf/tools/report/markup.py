"""Small pieces of HTML, and numbers as text."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence


def section(title: str, body: str, *classes: str) -> str:
    """A card; the body is HTML."""
    return f'<section class="{" ".join(classes)}"><h2>{html.escape(title)}</h2>{body}</section>'


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int] = (), flags: Collection[int] = ()
) -> str:
    """A table of texts, or "None." without rows; columns with numbers are set to the right, those with flags break."""
    kinds = {column: "number" for column in numbers} | {column: "flags" for column in flags}
    marks = [f' class="{kinds[column]}"' if column in kinds else "" for column in range(len(head))]
    lines = ["".join(f"<td{m}>{html.escape(text)}</td>" for m, text in zip(marks, row, strict=True)) for row in rows]
    if not lines:
        return "<p>None.</p>"
    top = "".join(f"<th{m}>{html.escape(text)}</th>" for m, text in zip(marks, head, strict=True))
    return f'<div class="scroll"><table><tr>{top}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def rounded(value: float) -> str:
    """With one decimal, or three digits if it is small."""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def mean_of(values: Iterable[float | None]) -> str:
    """The mean of those that are there, as a whole number."""
    there = [value for value in values if value is not None]
    return f"{sum(there) / len(there):,.0f}" if there else "none"


def duration(seconds: float) -> str:
    """Such as ``3.5 s``, ``12 min 5 s`` or ``2 h 10 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
