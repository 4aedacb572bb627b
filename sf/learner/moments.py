"""Number, mean and variance of some numbers, and those of two sets of numbers together."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

PIECE_ELEMENTS = 2**20
"""Numbers that are looked at at a time."""


SMALLEST = torch.finfo(torch.float64).tiny
"""In place of a number of samples by which is divided."""


class Moments(NamedTuple):
    """Moments of samples [N, *shape]; float64, the variance is that of the population."""

    size: Tensor
    """[]."""
    mean: Tensor
    """[*shape], 0 without samples."""
    variance: Tensor
    """[*shape], 0 without samples."""


def moments_of(samples: Tensor) -> Moments:
    """The moments of samples [N, *shape]."""
    if not len(samples):
        nothing = torch.zeros(samples.shape[1:], dtype=torch.float64, device=samples.device)
        return Moments(nothing.new_zeros(()), nothing, nothing)
    # In pieces, because the copies in float64 of a dataset of images would not fit beside it.
    pieces = torch.split(samples, max(1, PIECE_ELEMENTS // max(1, samples[0].numel())))
    return reduce(merged, map(_moments_of_piece, pieces))


def merged(a: Moments, b: Moments) -> Moments:
    """The moments of two sets together (Chan et al. 1979); all 0 if neither has samples."""
    delta = b.mean - a.mean
    total = a.size + b.size
    divisor = total.clamp_min(SMALLEST)
    squares = a.variance * a.size + b.variance * b.size + delta.square() * (a.size * b.size / divisor)
    return Moments(total, a.mean + delta * (b.size / divisor), squares / divisor)


def _moments_of_piece(samples: Tensor) -> Moments:
    variance, mean = torch.var_mean(samples.to(torch.float64), dim=0, correction=0)
    return Moments(mean.new_full((), len(samples)), mean, variance)
