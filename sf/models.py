"""Encoders that users bring along."""

from __future__ import annotations

import importlib
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sf.errors import ConfigError, SfError

if TYPE_CHECKING:
    from sf.config import ModelConfig

MakeEncoder = Callable[[dict[str, tuple[int, ...]], "ModelConfig"], Any]
"""Returns a torch module; torch is not imported here, because rollout workers do without it."""

AUTO = "auto"
"""The encoder of ours, which looks at the shapes."""

_registered: dict[str, MakeEncoder] = {}


def register_model(name: str, make: MakeEncoder) -> None:
    """Make ``--encoder=name`` mean ``make(shapes, config)``.

    Args:
        name: of the encoder. A name that is registered again gets the new function.
        make: a function or class that returns a torch module which turns the prepared observations, a dict from leaf to
            floats [B, *shape], into features [B, n]. `shapes` has the shape of each leaf: ``(size,)`` of a vector,
            ``(channels, height, width)`` of an image. It is called in several processes, so it must be at the top
            level of a module, and it must build the same network each time.
    """
    _registered[name] = make


def models_to_send() -> Mapping[str, MakeEncoder]:
    """What `register_model` was given, for child processes.

    Raises:
        ConfigError: a function cannot be sent to another process.
    """
    for name, make in _registered.items():
        try:
            pickle.dumps(make)
        except Exception as error:
            raise ConfigError(
                [
                    f"The encoder {name} cannot be sent to the learner and the inference workers ({error}). Define it "
                    "with def or class at the top level of a module file."
                ]
            ) from error
    return dict(_registered)


def register_models(models: Mapping[str, MakeEncoder]) -> None:
    """In a child process: what the parent had registered."""
    _registered.update(models)


def find_model(name: str) -> MakeEncoder:
    """The function behind a registered name, or behind ``module:name``.

    Raises:
        ConfigError: there is none, or its module raises an exception.
    """
    module, _, attribute = name.rpartition(":")
    if module and name not in _registered:
        with blamed_on_encoder(name, f"the import of {module}"):
            return _imported(name, module, attribute)
    check_encoder(name)
    return _registered[name]


@contextmanager
def blamed_on_encoder(name: str, call: str) -> Iterator[None]:
    """Turns whatever the code of an encoder raises into a ConfigError that holds its traceback."""
    try:
        yield
    except SfError:
        raise
    except Exception as error:
        stack = "".join(traceback.format_exception(error)).rstrip()
        raise ConfigError(
            [f"encoder={name} raised {type(error).__name__} in {call}. Its traceback:\n{stack}"]
        ) from error


def _imported(name: str, module: str, attribute: str) -> MakeEncoder:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there and misses another one
        raise ConfigError(
            [
                f"encoder={name} names the module {module}, which cannot be found. Check its name, and that it is in "
                "the working directory, in PYTHONPATH or in an installed package."
            ]
        ) from error
    if not hasattr(found, attribute):
        raise ConfigError(
            [f"encoder={name} names {attribute}, but {found.__file__} has no such class or function. Correct one."]
        )
    make: MakeEncoder = getattr(found, attribute)
    return make


def trust_encoder(name: str) -> None:
    """Import the encoder ``module:name``, so that files may name it from now on.

    Raises:
        ConfigError: it cannot be imported.
    """
    _registered[name] = find_model(name)


def expect_known_encoder(name: str) -> None:
    """Refuse the encoder that a file names if it would have to be imported: a file does not get to import modules.

    Raises:
        ConfigError: nobody has registered it.
    """
    if ":" in name and name not in _registered:
        raise ConfigError(
            [
                f"The policy has the encoder {name}, which imports a module. If you trust it, give --encoder={name} "
                f"or call sf.register_model({name!r}, ...) before loading."
            ]
        )
    check_encoder(name)


def check_encoder(name: str) -> None:
    """Refuse a name that nobody has registered; ``module:name`` is only imported where the network is built.

    Raises:
        ConfigError: there is no encoder of this name.
    """
    if name == AUTO or name in _registered:
        return
    module, colon, attribute = name.rpartition(":")
    if colon and not (attribute and all(module.split("."))):
        raise ConfigError([f"encoder={name} is no module:Name, such as my_encoders:Mine. Correct it."])
    if not colon:
        known = ", ".join(sorted(_registered)) or "none so far"
        raise ConfigError(
            [
                f"encoder={name} is not registered (registered: {known}). Call sf.register_model({name!r}, ...) before "
                "training or loading, or write --encoder=module:Name to import it."
            ]
        )
