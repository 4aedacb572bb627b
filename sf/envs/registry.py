"""The known environments."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from sf.by_value import able_to_travel, without_arguments
from sf.envs.blame import blamed_on
from sf.envs.installed import entry_points
from sf.envs.place import parameters_of
from sf.envs.source import EnvSource
from sf.envs.suggestions import is_of_old_gym, unknown_name
from sf.errors import EnvError, text_of

Factory = Callable[..., Any]

ENTRY_POINT_GROUP, VECTOR_ENTRY_POINT_GROUP, TENSOR_ENTRY_POINT_GROUP = "sf.envs", "sf.vector_envs", "sf.tensor_envs"
OLD_GYM_ID = (
    "Gymnasium has taken the place of gym: import gymnasium as gym in that module, and register there. Or pass a "
    "function to sf.register_env that returns the environment in a wrapper, such as shimmy.GymV26CompatibilityV0."
)
_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})
_registered: dict[str, Factory] = {}
_registered_vectors: dict[str, Factory] = {}
_registered_simulators: dict[str, Factory] = {}


def register_env(
    name: str, make: Factory | None = None, make_vec: Factory | None = None, *, make_tensors: Factory | None = None
) -> None:
    """Make ``--env=name`` mean ``make(**env_kwargs)``.

    The functions are called in the rollout workers. Those of a notebook, of a function or below a main guard, and
    lambdas, are sent there with their code. A name that is registered again gets the new functions.

    Args:
        name: id of the environment.
        make: returns one environment.
        make_vec: called with `num_envs` as well, returns that many as one `gymnasium.vector.VectorEnv`.
        make_tensors: in place of both, called with `num_envs` as well, returns a `sf.envs.tensors.TensorEnv`.

    Raises:
        EnvError: there is neither `make` nor `make_tensors`, or both.
    """
    if (make is None) == (make_tensors is None) or (make_vec is not None and make is None):
        raise EnvError(
            f"sf.register_env({name!r}) got make={make}, make_vec={make_vec} and make_tensors={make_tensors}. Expected "
            "make, with make_vec if there is one, or make_tensors alone."
        )
    for table, factory in (
        (_registered, make), (_registered_vectors, make_vec), (_registered_simulators, make_tensors)
    ):  # fmt: skip
        table.pop(name, None)
        if factory is not None:
            table[name] = factory


def find_env(env_id: str, kwargs: Mapping[str, Any] = _NO_ARGUMENTS, max_episode_steps: int | None = None) -> EnvSource:
    """How to make the environment of this id, see the order in `sf.envs`.

    Args:
        env_id: the name that the user gives.
        kwargs: its arguments.
        max_episode_steps: longest episode.

    Raises:
        EnvError: there is none; the message names the nearest ids.
    """
    simulator = _registered_simulators.get(env_id)
    if simulator is None and env_id not in _registered:
        simulator = _offered(env_id, TENSOR_ENTRY_POINT_GROUP)
    if simulator is not None:
        return _of_tensors(env_id, simulator, kwargs, max_episode_steps)
    factory = _registered.get(env_id) or _offered(env_id)
    if factory is not None:
        vector_factory = _registered_vectors.get(env_id)
        if env_id not in _registered:
            vector_factory = _offered(env_id, VECTOR_ENTRY_POINT_GROUP)
        vector_factory = None if vector_factory is None else travelling(env_id, vector_factory)
        return EnvSource(
            env_id,
            dict(kwargs),
            travelling(env_id, factory),
            vector_factory=vector_factory,
            max_episode_steps=max_episode_steps,
        )
    module, _, name = env_id.rpartition(":")
    if not module and name.startswith("ALE/") and importlib.util.find_spec("ale_py"):
        module = "ale_py"  # does not register its games with Gymnasium by itself
    if module:
        _import(env_id, module)
        if name in _registered or name in _registered_simulators:
            return find_env(name, kwargs, max_episode_steps)
        if (simulator := _simulator(module, name)) is not None:
            return _of_tensors(env_id, simulator, kwargs, max_episode_steps)
    import gymnasium

    if module and name not in gymnasium.registry and (found := _environment(module, name)) is not None:
        return EnvSource(env_id, dict(kwargs), travelling(env_id, found), max_episode_steps=max_episode_steps)
    if name not in gymnasium.registry:
        if is_of_old_gym(name):
            raise EnvError(f"{name} is registered with gym and not with Gymnasium. {OLD_GYM_ID}")
        raise EnvError(unknown_name(name, [*_registered, *_registered_simulators, *_families(), *gymnasium.registry]))
    if module:
        return EnvSource(name, dict(kwargs), modules=(module,), max_episode_steps=max_episode_steps)
    registration = None
    with contextlib.suppress(Exception):  # then other processes say that they do not know it
        registration = able_to_travel(partial(_same, gymnasium.registry[name]))
    return EnvSource(name, dict(kwargs), registration=registration, max_episode_steps=max_episode_steps)


def _of_tensors(env_id: str, make: Factory, kwargs: Mapping[str, Any], max_episode_steps: int | None) -> EnvSource:
    """How to make one copy, and many as one, with the function that makes a simulator in tensors."""
    from sf.envs.makers import MakeMany, MakeOne

    one, many = (travelling(env_id, kind(make, env_id)) for kind in (MakeOne, MakeMany))
    return EnvSource(
        env_id, dict(kwargs), one, vector_factory=many, in_tensors=True, max_episode_steps=max_episode_steps
    )


def _environment(module: str, name: str) -> Factory | None:
    """The class of an environment, of one agent or of several, that a module has under this name."""
    found: Any = getattr(sys.modules[module], name, None)
    return found if isinstance(found, type) and hasattr(found, "reset") and hasattr(found, "step") else None


def _simulator(module: str, name: str) -> Factory | None:
    """What makes simulators in tensors under this name in a module: a class or function that takes `num_envs`."""
    import gymnasium

    found = getattr(sys.modules[module], name, None)
    is_theirs = name in gymnasium.registry or not callable(found)
    return found if not is_theirs and "num_envs" in parameters_of(found) else None


def _same(registered: Any) -> Any:
    return registered


def known_ids() -> dict[str, list[str]]:
    """Group to the ids in it: those of our tables and of other packages, and the newest of each name in Gymnasium."""
    import gymnasium

    groups: dict[str, list[str]] = {"families and environments with the wrappers they need": sorted(_families())}
    newest: dict[tuple[str, str], Any] = {}
    for spec in gymnasium.registry.values():
        key = spec.namespace or "", spec.name
        if key not in newest or (spec.version or 0) > (newest[key].version or 0):
            newest[key] = spec
    for (namespace, _), spec in sorted(newest.items()):
        groups.setdefault(f"Gymnasium, {namespace}/" if namespace else "Gymnasium", []).append(spec.id)
    if ours := sorted({*_registered, *_registered_simulators}):
        groups["registered by this program"] = ours
    return groups


def find_pool(source: EnvSource) -> EnvSource:
    """The same environment out of EnvPool, which steps many copies at once.

    Raises:
        EnvError: EnvPool is not installed.
    """
    if importlib.util.find_spec("envpool") is None:
        raise EnvError(
            f"vectorization=envpool takes {source.env_id} out of EnvPool, which is not installed. Install it with: "
            'pip install "sf-rl[envpool]"'
        )
    family = _offered(f"envpool/{source.env_id.rpartition('/')[2]}", VECTOR_ENTRY_POINT_GROUP)
    assert family is not None, "our own table has it"
    return replace(source, vector_factory=family)


def _tables(group: str = ENTRY_POINT_GROUP) -> dict[str, str | Factory]:
    """Id to factory, or to the text ``module:function``, from the tables of all installed packages."""
    offered: dict[str, str | Factory] = {}
    for entry_point in entry_points(group=group):
        try:
            offered |= entry_point.load()
        except Exception as error:  # a broken package must not keep the user from the environments of others
            warnings.warn(
                f"The environments of {entry_point.value} are not available: {type(error).__name__}: {error}. "
                "Repair or uninstall the package that offers them.",
                stacklevel=2,
            )
    return offered


def _families() -> set[str]:
    """The ids and families of all tables."""
    return {*_tables(), *_tables(TENSOR_ENTRY_POINT_GROUP)}


def _offered(env_id: str, group: str = ENTRY_POINT_GROUP) -> Factory | None:
    """The factory for an id, or for a family of ids, which takes the rest of the id as its first argument."""
    tables = _tables(group)
    family, slash, name = env_id.partition("/")
    target = None if name == "*" else tables.get(env_id)
    if target is not None:
        return _imported(env_id, target)
    target = tables.get(f"{family}/*") if slash else None
    return None if target is None else partial(_imported(env_id, target), name)


def _imported(env_id: str, target: str | Factory) -> Factory:
    if not isinstance(target, str):
        return target
    module, _, function = target.partition(":")
    with blamed_on(env_id, f"the import of {module}"):
        factory: Factory = getattr(importlib.import_module(module), function)
        return factory


def _import(env_id: str, module: str) -> None:
    with blamed_on(env_id, f"the import of {module}"), without_arguments():
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name == "gym":
                raise EnvError(f"{module} imports gym, which is not installed. {OLD_GYM_ID}") from error
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module is there and misses another one
            hint = f" Modules are named without .py, like {module[:-3]}." if module.endswith(".py") else ""
            raise EnvError(
                f"env={env_id} names the module {module}, which cannot be found. Check its name, and that it is in the "
                f"working directory, in PYTHONPATH or in an installed package.{hint}"
            ) from error


def travelling(env_id: str, factory: Factory) -> Factory:
    """The factory in a form that goes to other processes, with its code where they cannot import it.

    Raises:
        EnvError: it holds something that cannot be pickled.
    """
    try:
        return able_to_travel(factory)
    except Exception as error:
        raise EnvError(
            f"The function that makes {env_id} cannot be sent to the rollout workers: it cannot be pickled "
            f"({text_of(error)}). It must not hold locks, open files or processes. Or define it with def or class at "
            "the top level of a module file."
        ) from None
