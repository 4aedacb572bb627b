"""Sentences about unknown columns, with the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def unknown(name: str, what: str, there: Sequence[str]) -> str:
    """A sentence for a name that is none of those that are there."""
    near = difflib.get_close_matches(name, there, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(there) or 'none'}."
    return f"{name!r} is no {what}. {hint}"
