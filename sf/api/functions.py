"""Functions of a program that a run calls in its processes, as the ``module:function`` by which they import them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sf.by_value import top_level_names
from sf.errors import UsageError


def name_of_function(function: Callable[..., Any] | str, flag: str) -> str:
    """The name of a function; what is a name already stays as it is.

    Args:
        function: at the top level of a module or of the script that was started.
        flag: that takes it, for messages.

    Raises:
        UsageError: other processes could not import it.
    """
    if isinstance(function, str):
        return function
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    if module == "__main__" and name in top_level_names():
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)  # of python -m
        return f"{Path(str(main.__file__)).stem if spec is None else spec.name}:{name}"
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is function:
        return f"{module}:{name}"
    raise UsageError(
        f"{flag}={function!r} cannot be imported by the processes of a run. Define the function at the top level of a "
        "module or of the script."
    )
