"""What the functions of `sf` take as an environment."""

from __future__ import annotations

from typing import Any

from sf.errors import UsageError


def expect_env_id(env: Any) -> None:
    """Refuses what is no text.

    Raises:
        UsageError: says how an environment of one's own gets a name.
    """
    if isinstance(env, str):
        return
    kind = f"the class {env.__name__}" if isinstance(env, type) else f"a {type(env).__name__}"
    raise UsageError(
        f"env is {kind}, expected the id of an environment such as CartPole-v1. "
        "Name one of your own with sf.register_env."
    )
