"""Failures of a child, as text: an exception may not survive pickling. The exit code says it a second time."""

from __future__ import annotations

import re
import signal
import traceback
from dataclasses import dataclass

from sf.errors import (
    CheckpointError,
    ConfigError,
    DeviceLost,
    EnvCrashed,
    EnvError,
    ExitCode,
    ResourceError,
    SfError,
    WorkerCrashed,
    text_of,
)
from sf.machine.memory import is_out_of_memory

MOST_BYTES = 7500
"""Largest of the two texts of a failure. A message below 16 KiB is written at once."""

LESS_MEMORY = (
    "There is not enough memory. A smaller --batch_size, --rollout or network needs less, and so do fewer environments "
    "(--num_workers, --num_envs_per_worker)."
)
DEVICE_LOST = re.compile(r"CUDA error: .*(uncorrectable|no CUDA-capable device|busy or unavailable|unknown error)")
"""Sentences of the CUDA runtime about an accelerator that is broken, gone, or in use by another program."""
OTHER_DEVICE = (
    "The accelerator cannot be used any more. Look at it with nvidia-smi. The same command goes on from the last "
    "checkpoint, on another accelerator with CUDA_VISIBLE_DEVICES, or with --device=cpu."
)


@dataclass(frozen=True)
class Failure:
    """Why a child ends: the text for the user, the traceback for the developer, the exit code for the shell."""

    kind: str
    message: str
    details: str
    exit_code: int
    is_expected: bool
    """Raised on purpose for the user (an SfError), so that the message says everything."""


def failure_of(error: BaseException) -> Failure:
    """Describes an exception in plain text, even one whose own methods raise."""
    try:
        details = "".join(traceback.format_exception(error)).rstrip()
    except Exception:
        details = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    if is_out_of_memory(error):
        error = ResourceError(f"{text_of(error) or type(error).__name__}\n{LESS_MEMORY}")
    elif isinstance(error, RuntimeError) and DEVICE_LOST.search(text_of(error)):
        error = DeviceLost(f"{text_of(error)}\n{OTHER_DEVICE}")
    expected = isinstance(error, SfError)
    code = error.exit_code if isinstance(error, SfError) else ExitCode.INTERNAL
    return Failure(type(error).__name__, shortened(text_of(error)), shortened(details), int(code), expected)


def shortened(text: str) -> str:
    """The beginning and the end of a text, and how much is missing between them."""
    encoded = text.encode(errors="backslashreplace")
    missing, half = len(encoded) - MOST_BYTES, MOST_BYTES // 2
    if missing <= 0:
        return text
    begin, end = encoded[:half].decode(errors="ignore"), encoded[-half:].decode(errors="ignore")
    return f"{begin}\n[{missing:,} bytes are left out]\n{end}"


def how_it_ended(exit_code: int | None) -> str:
    """The rest of a sentence that begins with the process."""
    if exit_code is not None and exit_code < 0:
        names = {one.value: one.name for one in signal.Signals}  # not of all real-time signals
        return f"was killed by {names.get(-exit_code, f'signal {-exit_code}')}"
    return f"exited with code {exit_code}"


def as_exception(failure: Failure, process: str) -> SfError:
    """The exception that tells the user of a failure in another process."""
    if not failure.is_expected:
        details = f"{failure.kind}: {failure.message}\nIts traceback:\n{failure.details}"
        return WorkerCrashed(f"{process} failed with {details}")
    text = f"{process}: {failure.message}"
    match failure.exit_code:
        case ExitCode.ENVIRONMENT:
            return EnvCrashed(text) if failure.kind == EnvCrashed.__name__ else EnvError(text)
        case ExitCode.CHECKPOINT:
            return CheckpointError(text)
        case ExitCode.RESOURCES:
            return ResourceError(text)
        case ExitCode.USAGE:
            return ConfigError([text])
        case _:
            return WorkerCrashed(text)
