"""The frame of every command: errors become one message on standard error and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from sf.errors import ExitCode, InternalError, SfError, WorkerCrashed
from sf.machine.limits import one_thread_each


def run_command(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code, also after an exception."""
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
    except Exception:
        traceback.print_exc()
        print("This is a fault of sf itself. Please report it with the lines above.", file=sys.stderr)
        return ExitCode.INTERNAL


def _message(error: SfError) -> str:
    first, *others = str(error).split("\n")
    return "\n".join([f"{type(error).__name__}: {first}", *others])
