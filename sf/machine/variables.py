"""Variables of the environment for programs that this process starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Inside the block they have these values; afterwards those from before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)  # another thread may have done so
            else:
                os.environ[name] = value
