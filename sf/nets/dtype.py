"""The dtype of networks, whatever the program around them has chosen for its own tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Makes tensors without a dtype float32 within a block; `torch.set_default_dtype` may have said otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
