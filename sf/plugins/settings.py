"""Settings of plugins: JSON objects that become keyword arguments of an encoder or an algorithm."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from sf.errors import ConfigError

NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def settings_for(kind: str, name: str, make: Callable[..., Any], text: str, num_given: int) -> dict[str, Any]:
    """The keyword arguments of a plugin.

    Args:
        kind: encoder or algorithm.
        name: of the plugin.
        make: is called with them.
        text: of the flag, a JSON object.
        num_given: arguments that come before them.

    Raises:
        ConfigError: the plugin does not take them, or misses one.
    """
    settings: dict[str, Any] = json.loads(text)
    if not settings:  # a constructor that fails without any is told with its traceback
        return {}
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # of compiled code
        return settings
    try:
        signature.bind(*[None] * num_given, **settings)
    except TypeError as error:
        taken = [one for one in list(signature.parameters.values())[num_given:] if one.kind in NAMED]
        known = ", ".join(_told(one) for one in taken) or "no settings"
        raise ConfigError(
            [
                f"{kind}_kwargs={text} does not fit {kind}={name}: {error}. It takes {known}. Correct the names in "
                f"--{kind}_kwargs, or the constructor."
            ]
        ) from None
    return settings


def _told(parameter: inspect.Parameter) -> str:
    """A parameter as it stands in the constructor, without its type."""
    default = parameter.default
    return parameter.name if default is inspect.Parameter.empty else f"{parameter.name}={default!r}"
