"""Arguments of an environment that may change while it lives: attributes of the same name."""

from __future__ import annotations

from typing import Any

from sf.errors import EnvError


def layer_with(env: Any, name: str) -> Any:
    """The wrapper or the environment that has an attribute itself; others may pass on what they are asked for.

    Raises:
        EnvError: none has it.
    """
    layer = env
    while layer is not None:
        if name in vars(layer) or hasattr(type(layer), name):
            return layer
        layer = vars(layer).get("env")
    raise EnvError(
        f"pbt_space names env.{name}, but the environment has no attribute {name}. Keep the argument under this name, "
        "where step or reset reads it."
    )
