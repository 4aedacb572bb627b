"""Differences between a saved state and the present one, as lines for an error message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def tensor_differences(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """One line for each name, shape or type in which tensors differ; their contents do not count."""
    lines = []
    for name in expected.keys() | found.keys():
        if name not in found:
            lines.append(f"{name}: missing, expected {_describe(expected[name])}")
        elif name not in expected:
            lines.append(f"{name}: not expected, found {_describe(found[name])}")
        elif _describe(expected[name]) != _describe(found[name]):
            lines.append(f"{name}: expected {_describe(expected[name])}, found {_describe(found[name])}")
    return sorted(lines)


def data_differences(expected: Any, found: Any, name: str = "") -> list[str]:
    """One line for each entry in which two JSON values differ; dicts are compared entry by entry."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = []
        for key in sorted(expected.keys() | found.keys()):
            entry = f"{name}.{key}" if name else key
            if key not in found:
                lines.append(f"{entry}: missing, expected {expected[key]!r}")
            elif key not in expected:
                lines.append(f"{entry}: not expected, found {found[key]!r}")
            else:
                lines += data_differences(expected[key], found[key], entry)
        return lines
    return [] if expected == found else [f"{name}: expected {expected!r}, found {found!r}"]


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
