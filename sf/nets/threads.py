"""How many threads torch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One within a block, which is faster for small networks; afterwards as many as before."""
    outside = torch.get_num_threads()
    if outside != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if outside != 1:
            torch.set_num_threads(outside)
