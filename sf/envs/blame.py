"""The origin of an exception: one of an environment becomes an EnvCrashed with its own traceback."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from sf.errors import EnvCrashed, SfError

_OWN_FILES = os.path.dirname(__file__) + os.sep


@contextmanager
def blamed_on(env_id: str, call: str) -> Iterator[None]:
    """Turns any exception of an environment in `call` into an EnvCrashed that holds the environment's traceback."""
    try:
        yield
    except SfError:
        raise
    except (Exception, SystemExit) as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
            frames = frames.tb_next  # the way from here to the environment explains nothing
        stack = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
        raise EnvCrashed(f"{env_id} raised {type(error).__name__} in {call}. Its traceback:\n{stack}") from error
