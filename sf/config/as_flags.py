"""Values as the command line has them, the inverse of parsing."""

from __future__ import annotations

import json
from typing import Any

from sf.errors import UsageError


def as_flags(name: str, value: Any) -> list[str]:
    """One flag with its value; several arguments for a list.

    Raises:
        UsageError: a dict has something in it that is no JSON.
    """
    if isinstance(value, dict):
        try:
            value = json.dumps(value, default=_plain)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{name}={value!r} cannot be written as a JSON object ({error}). Use texts, numbers, booleans, None, "
                "lists and dicts of them."
            ) from None
    if isinstance(value, (tuple, list)):
        return [f"--{name}", *(str(element) for element in value)]
    return [f"--{name}={value}"]


def _plain(value: Any) -> Any:
    """A number or an array of NumPy, or anything else with the same method, in types that JSON knows."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r} is a {type(value).__name__}")
