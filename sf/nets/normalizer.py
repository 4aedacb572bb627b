"""Shifting and scaling by running statistics that are part of the policy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VARIANCE_EPSILON = 1e-8


class Normalizer(nn.Module):
    """Maps numbers to mean 0 and deviation 1, and back.

    The statistics are float32 buffers, so they are published and saved with the weights, and they stay as they are from
    one version to the next: the acting and the training network are the same. The exact running moments live with the
    learner.
    """

    mean: Tensor
    std: Tensor
    mean_rest: Tensor

    def __init__(self, shape: tuple[int, ...], unit: float = 1.0, is_wide: bool = False) -> None:
        """Changes nothing until it has statistics.

        Args:
            shape: of one sample.
            unit: of the epsilon of the variance.
            is_wide: whether float32 may lose digits of the numbers. Then they are shifted in float64, by a mean with
                the digits that `mean` has lost in `mean_rest`.
        """
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("std", torch.ones(shape))
        self._epsilon, self._is_wide = VARIANCE_EPSILON * unit**2, is_wide
        self._statistics = (self.mean, self.std)
        if is_wide:
            self.register_buffer("mean_rest", torch.zeros(shape))

    def set_moments(self, mean: Tensor, variance: Tensor) -> None:
        """Take over statistics of shape `shape`, of any float type."""
        self.mean.copy_(mean)
        if self._is_wide:
            self.mean_rest.copy_(mean - self.mean)
        self.std.copy_(torch.sqrt(variance + self._epsilon))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of shape `shape` in float64, as far as the buffers have their digits."""
        mean = self.mean.to(torch.float64)
        if self._is_wide:
            mean = mean + self.mean_rest
        return mean, (self.std.to(torch.float64).square() - self._epsilon).clamp_(min=0.0)

    def normalize(self, x: Tensor) -> Tensor:
        """(x - mean) / sqrt(variance + 1e-8 unit²) for x of [..., *shape]; a new tensor, float32."""
        mean, std = self._statistics
        if self._is_wide:
            return torch.sub(x.to(torch.float64), mean).sub_(self.mean_rest).to(torch.float32).div_(std)
        return torch.sub(x, mean).div_(std)

    def denormalize(self, x: Tensor) -> Tensor:
        """The inverse of `normalize`."""
        mean, std = self._statistics
        return torch.addcmul(mean, x, std)
