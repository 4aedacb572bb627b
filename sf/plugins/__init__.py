"""Plugins of users: encoders and algorithms, by a registered name or as ``module:Name``.

Torch is not imported here, because rollout workers do without it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sf.by_value import able_to_travel, without_arguments
from sf.errors import ConfigError, SfError, UsageError, text_of
from sf.plugins.functions import TRUSTED, trust_functions


@dataclass(eq=False)
class Plugins:
    """Everything of one kind that this process knows by name."""

    kind: str
    """Also the flag that names one."""
    default: str
    """The name of ours, which is none of the registered ones."""
    example: str
    """An example of ``module:Name``."""
    how_to_register: str
    """With {name} in the place of the name."""
    target: str
    """The processes that construct one."""
    built_in: Mapping[str, str] = field(default_factory=dict)
    """Further names of ours, and the ``module:Name`` of each."""
    registered: dict[str, Any] = field(default_factory=dict)

    def register(self, name: str, make: Any) -> None:
        """Makes a name known; one that is registered again gets the new function or class."""
        self.registered[name] = make

    def to_send(self) -> Mapping[str, Any]:
        """The registered plugins, for child processes.

        Raises:
            ConfigError: something cannot be sent to another process.
        """
        sent: dict[str, Any] = {}
        for name, make in self.registered.items():
            try:
                sent[name] = able_to_travel(make)
            except Exception as error:
                raise ConfigError(
                    [
                        f"The {self.kind} {name} cannot be sent to {self.target} ({text_of(error)}). It must not hold "
                        "locks, open files or processes. Or define it at the top level of a module file."
                    ]
                ) from error
        return sent

    def find(self, name: str) -> Any:
        """The function or class behind a registered name, or behind ``module:name``.

        Raises:
            ConfigError: there is none, or its module raises an exception.
        """
        module, _, attribute = self.built_in.get(name, name).rpartition(":")
        if module and name not in self.registered:
            with blamed_on(f"{self.kind}={name}", f"the import of {module}"), without_arguments():
                return self._imported(name, module, attribute)
        self.check(name)
        return self.registered[name]

    def is_ours(self, name: str) -> bool:
        """Whether it comes with sf, and is as it comes."""
        return name == self.default or (name in self.built_in and name not in self.registered)

    def short(self, name: str) -> str:
        """The name that we have for what a ``module:Name`` stands for, also with arguments; else the name itself."""
        place = name.partition("(")[0]
        return next((short for short, ours in self.built_in.items() if ours == place), name)

    def bases_of(self, made: object) -> list[str]:
        """The names of ours whose classes a class of the user's, or a partial of one, derives from; nearest first."""
        made = made.func if isinstance(made, functools.partial) else made
        shorts = {place: short for short, place in self.built_in.items()}
        places = [f"{each.__module__}:{each.__qualname__}" for each in getattr(made, "__mro__", ())]
        return [shorts[place] for place in places if place in shorts]

    def trust(self, name: str) -> None:
        """Imports ``module:name``, so that files may name it from now on; what comes with sf is there already.

        Raises:
            ConfigError: it cannot be imported.
        """
        if not self.is_ours(name):
            self.register(name, self.find(name))

    def check(self, name: str) -> None:
        """Refuses a name that is not registered; ``module:name`` is only imported where one is constructed.

        Raises:
            ConfigError: there is nothing of this name.
        """
        if name == self.default or name in self.registered or name in self.built_in:
            return
        module, colon, attribute = name.rpartition(":")
        if colon and not (attribute and all(module.split("."))):
            raise ConfigError([f"{self.kind}={name} is no module:Name, such as {self.example}. Correct it."])
        if not colon:
            known = sorted({*self.registered, *self.built_in, self.default})
            meant = f" Did you mean {name.lower()}?" if name.lower() in known else ""
            raise ConfigError(
                [
                    f"{self.kind}={name} is not registered (registered: {', '.join(known)}).{meant} "
                    f"{self.how_to_register.format(name=repr(name))}, or write --{self.kind}=module:Name to import it."
                ]
            )

    def _imported(self, name: str, module: str, attribute: str) -> Any:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module is there and misses another one
            hint = f" Modules are named without .py, like {module[:-3]}." if module.endswith(".py") else ""
            raise ConfigError(
                [
                    f"{self.kind}={name} names the module {module}, which cannot be found. Check its name, and that it "
                    f"is in the working directory, in PYTHONPATH or in an installed package.{hint}"
                ]
            ) from error
        if not hasattr(found, attribute):
            raise ConfigError(
                [
                    f"{self.kind}={name} names {attribute}, but {found.__file__} has no such class or function. "
                    "Correct one."
                ]
            )
        return getattr(found, attribute)


@contextmanager
def blamed_on(plugin: str, call: str) -> Iterator[None]:
    """Turns an exception in the code of a plugin into a ConfigError that holds its traceback."""
    try:
        yield
    except SfError:
        raise
    except (Exception, SystemExit) as error:
        stack = "".join(traceback.format_exception(error)).rstrip()
        raise ConfigError([f"{plugin} raised {type(error).__name__} in {call}. Its traceback:\n{stack}"]) from error


ENCODERS = Plugins(
    "encoder", "auto", "my_encoders:Mine",
    "Call sf.register_model({name}, ...) before training or loading, or name its class: --encoder=module:Class",
    "the learner and the inference workers",
)  # fmt: skip
ALGORITHMS = Plugins(
    "algorithm", "ppo", "my_algorithms:Mine",
    "Give sf.train the class with algorithm=MyAlgorithm", "the learner",
    {
        "appo": "sf.algorithms.appo:APPO", "discrete_sac": "sf.algorithms.discrete_sac:DiscreteSAC",
        "dqn": "sf.algorithms.dqn:DQN", "drqn": "sf.algorithms.drqn:DRQN", "ppg": "sf.algorithms.ppg:PPG",
        "pqn": "sf.algorithms.pqn:PQN", "rnd": "sf.algorithms.rnd:RND", "sac": "sf.algorithms.sac:SAC",
        "td3": "sf.algorithms.td3:TD3",
    },
)  # fmt: skip


def register_model(name: str, make: Callable[..., Any]) -> None:
    """Make ``--encoder=name`` mean ``make(shapes, config)``.

    Args:
        name: of the encoder. A name that is registered again gets the new function.
        make: a function or class that returns a torch module. The module turns the prepared observations, a dict from
            leaf to floats [B, *shape], into features [B, n]. `shapes` has the shape of each leaf: ``(size,)`` of a
            vector, ``(channels, height, width)`` of an image. It is called in several processes, so it must be at the
            top level of a module. It must build the same network each time.
    """
    ENCODERS.register(name, make)


def name_of_algorithm(algorithm: Callable[..., Any] | str) -> str:
    """The value of the flag for a class or a `functools.partial` of one, which is registered under it.

    A text is taken as it is. A class of the main script is named after the file of that script, so that other scripts
    can import it.

    Raises:
        UsageError: it is neither.
    """
    return _name_of(ALGORITHMS, algorithm, "a subclass of sf.Algorithm, a functools.partial of one, or a name")


def name_of_encoder(encoder: Callable[..., Any] | str) -> str:
    """The same for what makes an encoder, see `register_model`.

    Raises:
        UsageError: it is neither.
    """
    return _name_of(ENCODERS, encoder, "a torch module's class or a function that makes one, or a name")


def _name_of(plugins: Plugins, given: Callable[..., Any] | str, expected: str) -> str:
    if isinstance(given, str):
        return given
    made: object = given
    arguments = ""
    if isinstance(made, functools.partial):
        shown = [*map(_shown, made.args), *(f"{name}={_shown(value)}" for name, value in made.keywords.items())]
        made, arguments = made.func, f"({', '.join(shown)})"
    if not (isinstance(made, type) or inspect.isroutine(made)):
        raise UsageError(
            f"{plugins.kind} is {given!r} ({type(given).__name__}), expected {expected}. Give the class and not an "
            "object of it."
        )
    module = made.__module__
    if module == "__main__":
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or "main").stem
    name = f"{module}:{made.__qualname__}{arguments}"
    plugins.register(name, given)
    return name


def _shown(value: object) -> str:
    """An argument in a name, the same in every process: only plain values are shown as they are."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


Sent = tuple[Mapping[str, Any], Mapping[str, Any], frozenset[str]]
"""Registered encoders and algorithms, and trusted functions."""
NOTHING: Sent = {}, {}, frozenset()


def plugins_to_send() -> Sent:
    """The plugins registered in this process, for `receive_plugins` in a child.

    Raises:
        ConfigError: something cannot be sent to another process.
    """
    return ENCODERS.to_send(), ALGORITHMS.to_send(), frozenset(TRUSTED)


def receive_plugins(sent: Sent) -> None:
    """In a child process: registers the plugins of the parent."""
    encoders, algorithms, functions = sent
    ENCODERS.registered.update(encoders)
    ALGORITHMS.registered.update(algorithms)
    trust_functions(functions)


def expect_known_encoder(name: str) -> None:
    """Refuse the encoder that a file names if it would have to be imported: a file does not get to import modules.

    Raises:
        ConfigError: it is not registered.
    """
    if ":" in name and name not in ENCODERS.registered:
        raise ConfigError(
            [
                f"The policy has the encoder {name}, which imports a module. If you trust it, give --encoder={name} "
                f"or call sf.register_model({name!r}, ...) before loading."
            ]
        )
    ENCODERS.check(name)
