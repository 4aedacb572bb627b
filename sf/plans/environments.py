"""How a plan makes its environments, in a form that travels to workers with everything that it holds.

Workers do not import the script of the user. So a plan may stand in a script without a main guard or in a notebook, and
so may its environments.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import cloudpickle

from sf.envs import EnvSource, find_env, probe
from sf.envs.place import parameters_of
from sf.spaces import EnvInfo

CONFIGS = "config", "env_config", "env_context"
"""A class with a parameter of such a name takes ``env_config`` as a whole, as those of RLlib do."""


class Look(NamedTuple):
    """An environment, looked at once."""

    source: EnvSource
    info: EnvInfo


def look_at(env: str | Callable[..., Any], env_config: Mapping[str, Any]) -> Look:
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
    source = replace(source, kwargs=Arguments(source.kwargs), factory=factory, vector_factory=vector_factory)
    return Look(source, probe(source))


def env_name(env: str | Callable[..., Any]) -> str:
    """For messages and files."""
    return env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)


class ByValue:
    """A function or class that is sent as it is, and not as the name of something to import."""

    def __init__(self, make: Callable[..., Any]) -> None:
        """Keeps this function or class."""
        self._make = make

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._make)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._make(*arguments, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (cloudpickle.dumps(self._make),)


class Arguments(dict[str, Any]):
    """Arguments that are sent in the same way."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (cloudpickle.dumps(dict(self)),)


def registration(source: EnvSource) -> Any:
    """What Gymnasium knows of an environment that no module registers, for workers to register it too; None else."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    spec = None if source.factory is not None or source.modules else gymnasium.registry.get(source.env_id)
    if spec is not None and isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
        entry_point: Any = load_env_creator(spec.entry_point)
        return replace(spec, entry_point=entry_point)
    return spec
