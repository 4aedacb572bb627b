"""Which environment of a run this one is, for those that ask: ports, files and shares of data differ between them.

An environment asks by a parameter of its factory or constructor:

    sf_worker   of the process: rollout-3 has 3. The evaluator of a run has the first number that no rollout worker has.
                The processes of sf-eval count from 0
    sf_index    of the environment in its process, from 0; of the first one where many step as one

No two environments that live at the same time in one run or command have the same pair. The first look ends before the
others are made. It gives 0 and 0 to its environment, and 0 and 1 to a second one beside it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def place_arguments(make: Callable[..., Any] | None, worker: int, index: int) -> dict[str, int]:
    """Those of the two arguments that a function or class names among its parameters."""
    parameters = parameters_of(make)
    return {name: value for name, value in (("sf_worker", worker), ("sf_index", index)) if name in parameters}


def parameters_of(make: Callable[..., Any] | None) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function or class by name; none where they are not known."""
    if make is None:
        return {}
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # some that are written in C have none
        return {}


def entry_point(env_id: str, vector: bool = False) -> Callable[..., Any] | None:
    """The function or class of an environment of Gymnasium, or of many copies of it; None if it is not known."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    spec = gymnasium.registry.get(name)
    found: Any = None if spec is None else spec.vector_entry_point if vector else spec.entry_point
    return load_env_creator(found) if isinstance(found, str) else found
