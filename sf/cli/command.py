"""The frame of every command: errors become one message on standard error and an exit code."""

from __future__ import annotations

import atexit
import gc
import importlib.metadata
import os
import select
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from sf.errors import ExitCode, InternalError, SfError, WorkerCrashed
from sf.machine.limits import one_thread_each
from sf.output import open_closed_streams
from sf.processes.callers import end_if_imported

VERSION = "--version"
PACKAGES = "purelib", "platlib"
"""Kinds of directories of installed packages."""


def run_command(command: Callable[[Sequence[str]], int], arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code, also after an exception or when the reader of its output has gone.

    Args:
        command: takes the words after its name; not called where `--version` is among them.
        arguments: those words; None for those of this process.
    """
    end_if_imported()
    open_closed_streams()
    atexit.register(gc.freeze)  # else Python looks at its end at all that torch has made, for half a second
    words = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            return _run(lambda: _show_version() if VERSION in words else command(words))
        finally:
            _flush()
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):
            if _reader_has_gone(stream):
                _discard(stream)  # Python's own flush at the end included
        return ExitCode.SIGPIPE


def _show_version() -> int:
    print(f"sf {importlib.metadata.version('sf-rl')}")
    return ExitCode.FINISHED


def _run(command: Callable[[], int]) -> int:
    if "" not in sys.path and not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, "")  # so that flags can name modules of the working directory, as with `python -m`
    try:
        with one_thread_each():  # NumPy is not loaded yet
            return command()
    except SfError as error:
        if isinstance(error, InternalError) and not isinstance(error, WorkerCrashed):
            traceback.print_exc()  # ours to debug; the message of a crashed worker holds its traceback already
        else:
            print(_message(error), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        # Python ends `python -m` by the signal if this was raised in text given to exec(), as dataclasses do. That
        # holds however the program ends afterwards; the next text clears it.
        exec("")
        return ExitCode.SIGINT
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_has_gone(sys.stdout):
            raise  # any other pipe is one of ours
        traceback.print_exc()
        print(_whose_fault(error), file=sys.stderr)
        return ExitCode.INTERNAL


def _whose_fault(error: Exception) -> str:
    """A sentence after the traceback: the code of the user's that it went through last, or else sf."""
    ours = Path(__file__).parents[1], *map(Path, (sysconfig.get_path("stdlib"), *map(sysconfig.get_path, PACKAGES)))
    frames = [(frame, Path(frame.filename)) for frame in traceback.extract_tb(error.__traceback__)]
    theirs = [frame for frame, file in frames if file.is_file() and not any(map(file.is_relative_to, ours))]
    if not theirs:
        return "This is a fault of sf itself. Please report it with the lines above."
    last = theirs[-1]
    return f"It was raised in {last.name}, line {last.lineno} of {last.filename}, or in what that line calls."


def _flush() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (OSError, ValueError):
        pass  # a full disk, which Python tells at its own flush, or a closed stream


def _reader_has_gone(stream: TextIO | None) -> bool:
    if stream is None:
        return False
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):  # closed, or no file
        return False


def _discard(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _message(error: SfError) -> str:
    first, *others = str(error).split("\n")
    return "\n".join([f"{type(error).__name__}: {first}", *others])
