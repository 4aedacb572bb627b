"""Functions ``module:function`` that the configuration of a run names: a file does not get to import modules.

An evaluation imports only those that its command names, and those of `sf_envs`.
"""

from __future__ import annotations

from collections.abc import Iterable

OURS = "sf_envs"
TRUSTED: set[str] = set()
"""Those that were named in this process, or in its parent."""


def trust_functions(names: Iterable[str]) -> None:
    """From now on these may be imported, also where only a file names them."""
    TRUSTED.update(names)


def is_trusted(name: str) -> bool:
    """Whether a function may be imported that a file names."""
    return name in TRUSTED or name.partition(":")[0].partition(".")[0] == OURS
