"""Functions and classes of users that other processes get by value, because they cannot import them."""

from __future__ import annotations

import ast
import functools
import pickle
import pickletools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class ByValue:
    """A function or class that is pickled with its code, because another process cannot import it."""

    def __init__(self, make: Callable[..., Any]) -> None:
        """Keeps a function or class, whose signature becomes that of this object."""
        functools.update_wrapper(self, make)
        self.make = make  # last, because a class may have an attribute of this name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function or class."""
        return self.make(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes]]:
        """What is unpickled is the function or class itself."""
        import cloudpickle  # most runs do without

        return cloudpickle.loads, (cloudpickle.dumps(self.make),)


def able_to_travel(make: Callable[..., Any]) -> Callable[..., Any]:
    """The function or class, or a form of it that pickle takes to another process.

    Processes import the script that was started, so they find what stands at its top level. What stands in a function,
    in a notebook or below a main guard is sent with its code, and lambdas are.

    Raises:
        Exception: it holds something that cannot be pickled.
    """
    try:
        if not (names := names_of_main(pickle.dumps(make))) or names <= top_level_names():
            return make
    except Exception:
        pass  # a lambda, or a class of a function
    by_value = ByValue(make)
    pickle.dumps(by_value)
    return by_value


def names_of_main(pickled: bytes) -> set[str]:
    """The names at the top level of the program that was started, as a pickle refers to them."""
    names: set[str] = set()
    texts: list[str] = []
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name == "STACK_GLOBAL" and texts[-2:-1] == ["__main__"]:
            names.add(texts[-1].partition(".")[0])
        elif operation.name == "GLOBAL" and str(argument).startswith("__main__ "):
            names.add(str(argument).removeprefix("__main__ ").partition(".")[0])
        elif isinstance(argument, str):
            texts.append(argument)
    if b"__main__" in pickled and not names:
        names.add("")  # in a form that is not known here: nothing has this name
    return names


def top_level_names() -> set[str]:
    """Functions and classes of the script that was started, without what stands below its main guard."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or not Path(path).is_file():  # a notebook, or a program from standard input
        return set()
    body = ast.parse(Path(path).read_bytes()).body
    return {part.name for part in body if isinstance(part, (ast.FunctionDef, ast.ClassDef))}


@contextmanager
def without_arguments() -> Iterator[None]:
    """Hides the arguments of this program from a module of the user's, which may read its own on import."""
    before, sys.argv = sys.argv, sys.argv[:1]
    try:
        yield
    finally:
        sys.argv = before
