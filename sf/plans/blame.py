"""The line of a plan that an exception comes from."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from sf.plans.local_iterator import OperatorFailed

LIBRARIES = {Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))}
"""Directories of Python, of packages and of `sf`."""


def blamed_on_plan(error: BaseException, where: str) -> OperatorFailed | None:
    """The exception for the user, with the line of theirs that it comes from; None where there is no such line.

    Args:
        error: as it was caught.
        where: it was raised, as the beginning of a sentence.
    """
    cause = error.__cause__ if isinstance(error, OperatorFailed) and error.__cause__ is not None else error
    frames = traceback.extract_tb(cause.__traceback__)
    own = [frame for frame in frames if not _is_of_a_library(frame.filename)]
    if not own:
        return None
    line = f"{own[-1].filename}, line {own[-1].lineno}, in {own[-1].name}: {own[-1].line}"
    said = str(error) if cause is not error else f"{where} raised {type(cause).__name__}: {cause}."
    stack = "".join(traceback.format_list(frames[frames.index(own[0]) :])).rstrip()
    return OperatorFailed(f"{said}\n  {line}\nThe way to it:\n{stack}")


def _is_of_a_library(filename: str) -> bool:
    path = Path(filename)
    return filename.startswith("<frozen ") or any(path.is_relative_to(library) for library in LIBRARIES)
