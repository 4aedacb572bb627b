"""Names within a family of environments."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sf.errors import EnvError


def with_version(name: str, version: int) -> str:
    """``Hopper`` to ``Hopper-v4``; a name that has a version keeps it."""
    return name if re.search(r"-v\d+$", name) else f"{name}-v{version}"


def unknown_member(family: str, kind: str, name: str, known: Iterable[str]) -> EnvError:
    """The refusal of a name that a family does not have; says which ones come near.

    Args:
        family: the beginning of its ids.
        kind: the word for a member in a sentence.
        name: the requested member.
        known: the names that there are.
    """
    by_lower = {candidate.lower(): candidate for candidate in sorted(known)}
    near = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3)]
    if near:
        return EnvError(f"There is no {kind} {name!r}. Did you mean {' or '.join(f'{family}/{id}' for id in near)}?")
    some = ", ".join(f"{family}/{id}" for id in list(by_lower.values())[:3])
    return EnvError(f"There is no {kind} {name!r}. There are {len(by_lower)}, such as {some}.")


def parameters(env_id: str, own: Any, settings: Mapping[str, Any]) -> Any:
    """The parameters of an environment of JAX, some of them replaced.

    Raises:
        EnvError: it has no parameter of that name.
    """
    known = sorted(vars(own))
    if wrong := sorted(settings.keys() - set(known)):
        raise EnvError(f"{env_id} has no parameter {wrong[0]!r}, expected one of {', '.join(known)}.")
    return own.replace(**settings)
