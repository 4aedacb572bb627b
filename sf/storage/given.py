"""`given.json` of a run: the flags that were given at its last start, and those that the run filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sf.config import Config
from sf.config.given import OF_DEFAULTS, chosen_flags, given_flags
from sf.storage.objects import json_object, write_object

GIVEN = "given.json"


@dataclass(frozen=True)
class Given:
    """The flags of one start."""

    flags: Mapping[str, Any] | None = None
    """Those that differed from their defaults; None where the version of that start did not note them."""
    chosen: frozenset[str] = field(default_factory=frozenset)
    """Those whose values the run filled in."""

    def write(self, directory: Path) -> None:
        """Raises OSError where the file cannot be written."""
        content = {"given": dict(self.flags or {}), "chosen": sorted(self.chosen)}
        write_object(directory / GIVEN, content)


NOT_NOTED = Given()
"""A start whose version of `sf` did not note what was given."""


def given_at(config: Config, given: Config | None = None) -> Given:
    """A start with this configuration, which was `given` before the run filled it in."""
    return Given(given_flags(given or config), frozenset(chosen_flags(given, config) if given else ()))


def read_given(directory: Path) -> Given:
    """The flags of the last start in the directory of a run."""
    content = json_object(directory / GIVEN)
    flags, chosen = content.get("given"), content.get("chosen")
    names = frozenset(name for name in chosen if isinstance(name, str)) if isinstance(chosen, list) else frozenset()
    return Given(flags if isinstance(flags, dict) else None, names)


def has_moved(name: str, now: Mapping[str, Any], earlier: Given) -> bool:
    """Whether the default of a flag is another one than at an earlier start, and neither start was given the flag.

    Args:
        name: the flag, whose value differs.
        now: the flags that are given now.
        earlier: the earlier start.
    """
    return (
        earlier.flags is not None
        and name not in earlier.flags
        and name not in now
        and all(earlier.flags.get(other) == now.get(other) for other in OF_DEFAULTS)
    )


def way_back(name: str, before: Any, now: Mapping[str, Any], earlier: Given) -> str:
    """Words that say how a flag that is not given now has its earlier value again; nothing for one that is given.

    Args:
        name, now, earlier: as for `has_moved`.
        before: the earlier value.
    """
    if name in now or before is None or isinstance(before, (list, dict)):
        return ""
    why = "it is the default now" if earlier.flags is None else "it is not given now"
    return f"{'the default has changed since' if has_moved(name, now, earlier) else why}; add --{name}={before}"
