"""The global generators of Python, NumPy and torch, for environments that draw from them.

A process with environments alone seeds them. Where training goes on in the same process, environments of an evaluation
get generators of their own, and those of the training are put back after each call.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np


def seed_globals(entropy: Sequence[int], with_torch: bool = True) -> None:
    """Seeds the global generators.

    Args:
        entropy: from which their state follows.
        with_torch: seed that of torch for the CPU as well, if torch is loaded.
    """
    word = _word(entropy)
    random.seed(word)
    np.random.seed(word)
    if with_torch:
        seed_torch(entropy)


def seed_torch(entropy: Sequence[int]) -> None:
    """Seeds the global generator of torch for the CPU, if torch is loaded."""
    if (generator := _of_torch()) is not None:
        generator.manual_seed(_word(entropy))


def _word(entropy: Sequence[int]) -> int:
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


class GlobalGenerators:
    """Around calls of environments, which then find the same global generators after each `seed`."""

    def __init__(self, entropy: Sequence[int], is_shared: bool) -> None:
        """Nothing is changed yet.

        Args:
            entropy: from which the generators follow.
            is_shared: whether others in this process have to find the global generators as they were.
        """
        self._entropy, self._is_shared = entropy, is_shared
        self._is_fresh = True
        self._own: Any = None
        self._others: Any = None
        self._numpy = np.random.MT19937(0)

    def seed(self) -> None:
        """Begins anew with the next call."""
        self._is_fresh = True

    def __enter__(self) -> None:
        if self._is_shared:
            self._others = np.random.get_bit_generator(), _state()  # type: ignore[attr-defined]  # not in the stubs
            np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]  # not in the stubs
            if not self._is_fresh:
                _set_state(self._own)
        if self._is_fresh:
            self._is_fresh = False
            seed_globals(self._entropy)

    def __exit__(self, *_: object) -> None:
        if self._is_shared:
            self._own = _state()
            numpy_of_others, state = self._others
            np.random.set_bit_generator(numpy_of_others)  # type: ignore[attr-defined]  # not in the stubs
            _set_state(state)


def _state() -> tuple[Any, Any]:
    """States of Python's generator, and of torch's if it is loaded."""
    generator = _of_torch()
    return random.getstate(), None if generator is None else generator.get_state()


def _set_state(state: tuple[Any, Any]) -> None:
    python, torch_state = state
    random.setstate(python)
    if torch_state is not None:
        _of_torch().set_state(torch_state)


def _of_torch() -> Any:
    return getattr(sys.modules.get("torch"), "default_generator", None)
