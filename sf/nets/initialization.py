"""How weights begin."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from torch import Tensor, nn

_is_wanted = ContextVar("is_wanted", default=True)


def orthogonal(weight: Tensor, bias: Tensor, gain: float = 1.0) -> None:
    """Orthogonal weights and zero bias."""
    if _is_wanted.get():
        nn.init.orthogonal_(weight, gain)
        nn.init.zeros_(bias)


@contextlib.contextmanager
def without_initialization() -> Iterator[None]:
    """For a network whose variables are read from a file: decompositions of weights take most of the time to build it.

    The weights are arbitrary finite numbers then.
    """
    token = _is_wanted.set(False)
    try:
        yield
    finally:
        _is_wanted.reset(token)
