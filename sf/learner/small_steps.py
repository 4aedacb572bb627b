"""The parts of an optimizer step around a small network in C; torch takes longer to begin each operation.

Each function is a shortcut of the one with the same formula in `sf.learner.losses`, `sf.learner.ppo` and
`sf.learner.optimizer`, for float32 vectors on the CPU. There may be no compiler, see `small_steps`.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sf.config import LearnerConfig
from sf.machine.compiled import NoCompilerError, library

SOURCE = Path(__file__).with_name("small_steps.c")
MOST_NUMBERS = 200_000
"""Longer vectors take torch, which uses several threads."""
Pointer = ctypes.c_void_p


class Coefficients(ctypes.Structure):
    """The same fields in the same order as in `small_steps.c`."""

    _fields_ = (
        *((name, ctypes.c_float) for name in ("low", "high", "least_ratio", "most_ratio", "most_log_ratio")),
        *((name, ctypes.c_float) for name in ("clip_value", "value", "entropy", "kl")),
        ("is_reciprocal", ctypes.c_int32),
    )


class SmallSteps:
    """The functions of `small_steps.c`."""

    def __init__(self, functions: Any) -> None:
        count, number = ctypes.c_int64, ctypes.c_double
        self._normalize, self._clip = functions.sf_normalize, functions.sf_clip
        self._ppo_gradients, self._adam = functions.sf_ppo_gradients, functions.sf_adam
        self._normalize.argtypes, self._normalize.restype = [count, count, Pointer, Pointer], None
        self._ppo_gradients.argtypes, self._ppo_gradients.restype = [count, *[Pointer] * 10], None
        self._clip.argtypes, self._clip.restype = [count, ctypes.c_float, Pointer], number
        self._adam.argtypes, self._adam.restype = [count, count, *[number] * 4, *[Pointer] * 4], None

    def normalize(self, advantages: Tensor, ddof: int) -> Tensor:
        """See `sf.learner.losses.normalize_advantages`."""
        normalized = torch.empty_like(advantages)
        self._normalize(len(advantages), ddof, advantages.data_ptr(), normalized.data_ptr())
        return normalized

    def ppo_gradients(self, coefficients: Coefficients, *columns: Tensor) -> tuple[Tensor, ...]:
        """Derivatives with respect to log-probabilities, entropies and values, see `PPO.gradients`.

        Args:
            coefficients: of the loss.
            columns: [N] each: log-probabilities now and when acting, advantages, values now and when
                acting, value targets.
        """
        columns = tuple(column.contiguous() for column in columns)
        gradients = torch.empty(3, len(columns[0]))
        first, size = gradients.data_ptr(), 4 * len(columns[0])
        self._ppo_gradients(
            len(columns[0]), ctypes.addressof(coefficients), *(column.data_ptr() for column in columns),
            first, first + size, first + 2 * size,
        )  # fmt: skip
        return gradients.unbind()

    def clip(self, gradient: Tensor, max_norm: float) -> float:
        """See `sf.learner.optimizer.clip_gradient`."""
        norm: float = self._clip(len(gradient), max_norm, gradient.data_ptr())
        return norm

    def adam(self, step: int, lr: float, beta1: float, beta2: float, eps: float, *vectors: Tensor) -> None:
        """See `sf.learner.optimizer.Adam`; the vectors are parameters, gradient, first and second moments."""
        self._adam(len(vectors[0]), step, lr, beta1, beta2, eps, *(vector.data_ptr() for vector in vectors))


def small_steps(config: LearnerConfig) -> SmallSteps | None:
    """The functions, compiled when they are first needed; None without a compiler or with native_update=False."""
    return _compiled() if config.native_update else None


@functools.cache
def _compiled() -> SmallSteps | None:
    try:
        return SmallSteps(library(SOURCE))
    except NoCompilerError:
        return None


def is_small(vector: Tensor) -> bool:
    """Whether the functions take a vector, and are faster than torch."""
    return vector.is_cpu and vector.dtype == torch.float32 and len(vector) <= MOST_NUMBERS
