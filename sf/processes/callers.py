"""Which programs may have processes of ours."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading

from sf.errors import UsageError
from sf.output import open_closed_streams

NOT_GUARDED = 66
"""Exit code of a child that found the training in the script that it had to import."""


def end_if_imported() -> None:
    """Ends a process of a run that imports the script; its parent is told by the exit code and says what to change."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # there may be none
                stream.flush()
        os._exit(NOT_GUARDED)  # a fork server hides the code of SystemExit


def expect_place_for_processes(caller: str) -> None:
    """Ends a process that only imports the script of the user, and refuses places that cannot have processes.

    Args:
        caller: the function of ours that was called, for messages.

    Raises:
        UsageError: the process is daemonic, or the thread is not the main one.
    """
    end_if_imported()
    open_closed_streams()
    if multiprocessing.current_process().daemon:
        raise UsageError(
            f"{caller} was called in a daemonic process, which may not have processes of its own. Start that process "
            "with daemon=False."
        )
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            f"{caller} was called in the thread {threading.current_thread().name}, but it must be in the main thread. "
            "Its processes end with the thread that started them."
        )
