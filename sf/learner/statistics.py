"""Running mean and variance of observations and returns: the exact moments behind the policy's normalizers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sf.policy import ActorCritic

INITIAL_COUNT = 1e-4
"""Weight of the initial mean 0 and variance 1."""

PIECE_ELEMENTS = 2**20
"""Numbers that are merged at a time."""


class RunningMoments:
    """Mean and variance of everything seen so far, in float64.

    Batches are merged by the parallel formula of Chan et al. (1979); the variance is that of the population.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.variance = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = torch.tensor(INITIAL_COUNT, dtype=torch.float64, device=device)

    def update(self, samples: Tensor) -> None:
        """Take in samples of [N, *shape]."""
        # In pieces, because the copies in float64 of a dataset of images would not fit beside it.
        for piece in torch.split(samples, max(1, PIECE_ELEMENTS // max(1, self.mean.numel()))):
            self._merge(piece)

    def _merge(self, samples: Tensor) -> None:
        batch_count = len(samples)
        batch_variance, batch_mean = torch.var_mean(samples.to(torch.float64), dim=0, correction=0)
        delta = batch_mean - self.mean
        total = self.count + batch_count
        squares = (
            self.variance * self.count
            + batch_variance * batch_count
            + delta.square() * (self.count * batch_count / total)
        )
        self.mean.add_(delta * (batch_count / total))
        self.variance.copy_(squares / total)
        self.count.copy_(total)


class Statistics:
    """Keeps the running moments of a policy's inputs and returns and copies them into its normalizers.

    The normalizers change only in `fold_in`, once per iteration after the last optimizer step. So what acted is what
    trains, and a version of the policy never changes its statistics.
    """

    def __init__(self, policy: ActorCritic) -> None:
        device = policy.flat.device
        self._normalizers = {f"observations.{name}": norm for name, norm in policy.observation_normalizers.items()}
        if policy.return_normalizer is not None:
            self._normalizers["returns"] = policy.return_normalizer
        self.moments = {
            name: RunningMoments(tuple(norm.mean.shape), device) for name, norm in self._normalizers.items()
        }

    @torch.no_grad()
    def fold_in(self, observations: Mapping[str, Tensor], returns: Tensor) -> None:
        """Take in observations [N, *shape] per leaf and returns [N], and pass the new statistics to the policy."""
        for name, moments in self.moments.items():
            moments.update(returns if name == "returns" else observations[name.removeprefix("observations.")])
            self._normalizers[name].set_moments(moments.mean, moments.variance)

    def state_dict(self) -> dict[str, Tensor]:
        """The moments by name; float64."""
        return {
            f"{name}.{part}": tensor
            for name, moments in self.moments.items()
            for part, tensor in (("mean", moments.mean), ("variance", moments.variance), ("count", moments.count))
        }
