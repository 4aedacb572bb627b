"""Generators and threads of a program: the generators are seeded for a plan; its local samples leave both alone."""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any

import numpy as np
import torch


class OneThread:
    """Within ``with`` torch computes with one thread, as in a worker; afterwards with as many as before."""

    def __enter__(self) -> None:
        self._outside = torch.get_num_threads()
        if self._outside != 1:
            torch.set_num_threads(1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._outside != 1:
            torch.set_num_threads(self._outside)


class OwnGenerators:
    """Within ``with`` the global generators of Python, NumPy and torch are the own ones; afterwards they are put back.

    The own ones go on where the last block has left them. In the first block they begin as those of the program.
    """

    def __init__(self) -> None:
        """Has drawn nothing."""
        self._own: Any = None
        self._outside: Any = None

    def __enter__(self) -> None:
        self._outside = _states()
        if self._own is not None:
            _set_states(self._own)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._own = _states()
        _set_states(self._outside)


def seed_generators(seed: int) -> None:
    """Seeds the global generators of Python, NumPy and torch, from which all parts of a plan draw."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _states() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_states(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
