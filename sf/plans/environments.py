"""How a plan makes its environments, in a form that travels to workers with everything that it holds.

Workers do not import the script of the user. So a plan may stand in a script without a main guard or in a notebook, and
so may its environments.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import cloudpickle

from sf.by_value import ByValue
from sf.envs import EnvSource, find_env, probe
from sf.envs.place import parameters_of
from sf.plans.program import packed
from sf.spaces import EnvInfo

CONFIGS = "config", "env_config", "env_context"
"""A class with a parameter of such a name takes ``env_config`` as a whole, as those of RLlib do."""


def look_at(env: str | Callable[..., Any], env_config: Mapping[str, Any]) -> tuple[EnvSource, EnvInfo]:
    """How to make an environment, and its spaces.

    Args:
        env: name of an environment, or a class or function that makes one.
        env_config: its arguments.

    Raises:
        EnvError: there is no such environment, or it cannot be used.
    """
    if isinstance(env, str):
        source = find_env(env, env_config, None)
    else:
        whole = next((name for name in CONFIGS if name in parameters_of(env)), None)
        source = EnvSource(env_name(env), dict(env_config) if whole is None else {whole: dict(env_config)}, env)
    factory, vector_factory = (make and ByValue(make) for make in (source.factory, source.vector_factory))
    kwargs = Arguments(source.kwargs)
    source = replace(source, kwargs=kwargs, factory=factory, vector_factory=vector_factory, registration=None)
    return source, probe(source)


def env_name(env: str | Callable[..., Any]) -> str:
    """For messages and files."""
    return env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)


class Arguments(dict[str, Any]):
    """Arguments that are sent with the code of functions and classes among them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (cloudpickle.dumps(dict(self)),)


def registrations(source: EnvSource) -> tuple[bytes, ...]:
    """What Gymnasium knows of environments that only this program may have registered, for workers to register it too.

    An environment of a plan may make others of them.

    Raises:
        UsageError: the environment of the plan cannot be sent.
    """
    import gymnasium

    sent = []
    for spec in gymnasium.registry.values():
        is_own = spec.id == source.env_id and source.factory is None and not source.modules
        try:
            if is_own or not _is_of_gymnasium(spec):
                sent.append(packed(f"The environment {spec.id}", _resolved(spec)))
        except Exception:
            if is_own:
                raise
    return tuple(sent)


def _is_of_gymnasium(spec: Any) -> bool:
    makes = [make for make in (spec.entry_point, spec.vector_entry_point) if make is not None]
    return all(isinstance(make, str) and make.startswith("gymnasium.") for make in makes)


def _resolved(spec: Any) -> Any:
    """With functions and classes of the script in the place of their names."""
    from gymnasium.envs.registration import load_env_creator

    names = {field: getattr(spec, field) for field in ("entry_point", "vector_entry_point")}
    found: dict[str, Any] = {
        field: load_env_creator(make)
        for field, make in names.items()
        if isinstance(make, str) and make.startswith("__main__:")
    }
    return replace(spec, **found)
