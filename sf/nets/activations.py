"""The functions between layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_MINUS_ONE = torch.tensor(-1.0, dtype=torch.float32)


def _has_fast_tanh() -> bool:
    """Whether the processor is one of Intel's, whose library torch computes tanh with where it was built with it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    has_library = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return has_library and any("GenuineIntel" in line for line in lines)


def _tanh_by_sigmoid(x: Tensor) -> Tensor:
    """tanh(x) = 2·sigmoid(2x) - 1, to 2e-7.

    On a processor of AMD torch takes three times as long for tanh as for sigmoid (3.2 against 1.0 ns per number). With
    two layers of 64 tanh is then the largest part of a forward pass. On one of Intel tanh takes 0.3 ns, a third of
    this. Python numbers as operands would cost 2 µs each.
    """
    return torch.add(_MINUS_ONE, torch.add(x, x).sigmoid_(), alpha=2.0)


class _Tanh(torch.autograd.Function):
    """`_tanh_by_sigmoid` with the one-pass gradient of tanh, 1 - y²."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _tanh_by_sigmoid(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        gradient: Tensor = torch.ops.aten.tanh_backward(grad_outputs[0], y)
        return gradient


HAS_FAST_TANH = _has_fast_tanh()


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent, the same numbers with and without gradients."""
    if HAS_FAST_TANH or not x.is_cpu:
        return torch.tanh(x)
    if x.requires_grad and torch.is_grad_enabled():
        y: Tensor = _Tanh.apply(x)  # type: ignore[no-untyped-call]
        return y
    return _tanh_by_sigmoid(x)


def _relu_gradient(gradient: Tensor, y: Tensor) -> Tensor:
    derivative: Tensor = torch.ops.aten.threshold_backward(gradient, y, 0)
    return derivative


def _elu_gradient(gradient: Tensor, y: Tensor) -> Tensor:
    derivative: Tensor = torch.ops.aten.elu_backward(gradient, 1.0, 1.0, 1.0, True, y)
    return derivative


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": tanh, "relu": functional.relu, "elu": functional.elu}

GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tanh": torch.ops.aten.tanh_backward,
    "relu": _relu_gradient,
    "elu": _elu_gradient,
}
"""From dL/dy and y to dL/dx, where y is the function of x."""
