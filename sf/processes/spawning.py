"""Processes that are programs of their own, started without waiting for them.

The standard library hands a new process what it is given through a pipe, and waits until that is read. A process that
was killed or stopped as it was born never reads it, and the pipe takes 64 KiB at most. So what may be long, arguments
of the function and those of the command line, is in files without names; the pipe carries their descriptors.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import context, reduction
from multiprocessing.context import SpawnProcess
from typing import Any

from sf.machine.limits import ensure_file_size


def spawned(function: Callable[..., Any], *arguments: Any, name: str | None = None) -> SpawnProcess:
    """A process that will call `function(*arguments)`; to be started within `sf.processes.simulators.starting`.

    Args:
        function: at the top level of a module.
        arguments: what can be sent to a process, shared memory and pipes included.
        name: of the process.
    """
    given = function, _InFile(arguments)
    return multiprocessing.get_context("spawn").Process(target=_call, args=given, name=name)


@contextlib.contextmanager
def command_line_in_file() -> Iterator[None]:
    """Inside the block a process that is started finds the arguments of this program in a file."""
    before = sys.argv
    sys.argv = _CommandLine(before)
    try:
        yield
    finally:
        sys.argv = before


class _InFile:
    """Something that is itself again in the process that is started, where it is unpickled without a module of ours."""

    def __init__(self, contents: Any) -> None:
        self._contents, self._descriptor = contents, -1

    def __reduce__(self) -> tuple[Any, ...]:
        text = io.BytesIO()
        reduction.dump(self._contents, text)
        ensure_file_size(text.tell())
        self._descriptor = os.memfd_create("sf-arguments")
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(text.getbuffer())
        os.lseek(self._descriptor, 0, os.SEEK_SET)  # for the reader, who shares the position
        started: Any = context.get_spawning_popen()
        return pickle.load, (_Opened(started.duplicate_for_child(self._descriptor)),)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class _Opened:
    """A descriptor that is an open file in the process that is started."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._descriptor, "rb")


class _CommandLine(list[str]):
    """As `sys.argv` is, but for the way in which it travels."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(arguments)
        self._sent = _InFile(list(arguments))

    def __reduce__(self) -> tuple[Any, ...]:
        return self._sent.__reduce__()


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    function(*arguments)
