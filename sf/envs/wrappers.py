"""Wrappers that keep running statistics of their own, beside those of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FLAGS = {"NormalizeObservation": "--normalize_input=True", "NormalizeReward": "--normalize_rewards=True"}
"""Name of a wrapper to the flag that does the same with statistics of the run."""


def note_on_statistics(env: Any, env_id: str) -> str:
    """A sentence about such wrappers of an environment, or of copies that step as one; "" if there are none."""
    classes = {base.__name__ for layer in _layers(env) for base in type(layer).__mro__}
    found = {name: flag for name, flag in FLAGS.items() if name in classes}
    if not found:
        return ""
    return (
        f"Warning: {env_id} has the wrapper{'s'[: len(found) - 1]} {' and '.join(found)}. Each copy keeps statistics "
        "of its own, no checkpoint has them, and evaluations begin without them. Leave it out and use "
        f"{' '.join(found.values())}, whose statistics are saved with the policy."
    )


def _layers(env: Any) -> Iterator[Any]:
    """The environment and those within it, of a vector environment the first of its copies as well."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        own = getattr(env, "__dict__", {})  # a wrapper answers for other attributes of what is within it
        copies = own.get("envs")
        env = own.get("env") or (copies[0] if isinstance(copies, (list, tuple)) and copies else None)
