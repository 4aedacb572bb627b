"""The names that an environment has for its actions."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from sf.spaces import ActionSpec


def action_names(env: Any, action: ActionSpec) -> Sequence[str]:
    """A name for each choice of a single Discrete action; empty where there are none, or another number of them.

    Read are the method `get_action_meanings` of Atari and an enumeration `actions` as Minigrid has it.
    """
    if len(action.columns) != 1 or not action.columns[0].num_choices:
        return ()
    own = getattr(env, "unwrapped", env)
    try:
        if callable(method := getattr(own, "get_action_meanings", None)):
            names = [str(name) for name in method()]
        else:
            names = _members(getattr(own, "actions", None))
    except Exception:  # of the environment; a film does without names
        return ()
    return names if len(names) == action.columns[0].num_choices else ()


def _members(actions: Any) -> list[str]:
    """By their values, if these are 0, 1, 2, ..."""
    if not (isinstance(actions, type) and issubclass(actions, enum.IntEnum)):
        return []
    by_value = {int(member): member.name for member in actions}
    return [by_value[value] for value in range(len(by_value))]
