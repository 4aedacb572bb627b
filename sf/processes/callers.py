"""Which programs may have processes of ours."""

from __future__ import annotations

import multiprocessing
import sys
import threading

from sf.errors import UsageError
from sf.output import open_closed_streams


def expect_place_for_processes(caller: str) -> None:
    """Ends a process that only imports the script of the user, and refuses places that cannot have processes.

    Args:
        caller: the function of ours that was called, for messages.

    Raises:
        UsageError: the process is daemonic, or the thread is not the main one.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        from sf.processes.process import NOT_GUARDED

        # A process of the run imports the script. Its parent is told by the exit code and says what to change.
        sys.exit(NOT_GUARDED)
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
