"""Processes that are programs of their own, started without waiting for them.

The standard library hands a new process what it is given through a pipe, and waits until that is read. A process that
was killed or stopped as it was born never reads it, and the pipe takes no more than 64 KiB at once. So what may be long
goes another way: arguments of the function in a file without a name, those of the command line not at all.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from multiprocessing.context import SpawnProcess
from typing import Any

MOST_CHARACTERS = 8192
"""Of the command line; what else goes through the pipe are some paths and names."""


def spawned(function: Callable[..., Any], *arguments: Any, name: str | None = None) -> SpawnProcess:
    """A process that will call `function(*arguments)`; to be started within `sf.simulators.starting`.

    Args:
        function: at the top level of a module.
        arguments: what can be sent to a process, shared memory and pipes included.
        name: of the process.
    """
    enclosed = function, _Enclosed(arguments)
    return multiprocessing.get_context("spawn").Process(target=_call, args=enclosed, name=name)


@contextlib.contextmanager
def short_command_line() -> Iterator[None]:
    """Inside the block a process that is started is not told the arguments of this program if they are long."""
    before = sys.argv
    if sum(map(len, before)) > MOST_CHARACTERS:
        sys.argv = before[:1]
    try:
        yield
    finally:
        sys.argv = before


class _Enclosed:
    """Arguments that become themselves again in the process that is started."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._arguments, self._file = arguments, os.memfd_create("sf-arguments")

    def __reduce__(self) -> tuple[Any, ...]:
        with open(self._file, "wb", closefd=False) as file:
            reduction.dump(self._arguments, file)
        return _opened, (reduction.DupFd(self._file),)

    def __del__(self) -> None:
        os.close(self._file)


def _opened(descriptor: Any) -> Any:
    with open(descriptor.detach(), "rb") as file:
        file.seek(0)
        return pickle.load(file)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    function(*arguments)
