"""Shifting and scaling by running statistics that are part of the policy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VARIANCE_EPSILON = 1e-8


class Normalizer(nn.Module):
    """Maps numbers to mean 0 and deviation 1, and back.

    The statistics are float32 buffers, so they are published and saved with the weights, and they stay as they are from
    one version to the next: what acted is what trains. The exact running moments live with the learner.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("std", torch.ones(shape))
        self._statistics = (self.mean, self.std)

    def set_moments(self, mean: Tensor, variance: Tensor) -> None:
        """Take over statistics of shape `shape`, of any float type."""
        self.mean.copy_(mean)
        self.std.copy_(torch.sqrt(variance + VARIANCE_EPSILON))

    def normalize(self, x: Tensor) -> Tensor:
        """(x - mean) / sqrt(variance + 1e-8) for x of [..., *shape]; a new tensor."""
        mean, std = self._statistics
        return torch.sub(x, mean).div_(std)

    def denormalize(self, x: Tensor) -> Tensor:
        """The inverse of `normalize`."""
        mean, std = self._statistics
        return torch.addcmul(mean, x, std)
