"""Running mean and variance of observations and returns: the exact moments behind the policy's normalizers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sf.learner.moments import Moments, merged, moments_of
from sf.learner.peers import ALONE, Peers
from sf.policy import ActorCritic


class RunningMoments:
    """Mean and variance of everything seen so far, in float64.

    Batches are merged by the parallel formula of Chan et al. (1979); the variance is that of the population.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device, initial_count: float = 0.0) -> None:
        """Begins with mean 0 and variance 1.

        Args:
            shape: of one sample.
            device: of the moments.
            initial_count: samples that the first mean and variance count for; with 0 the first data replace them.
        """
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.variance = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = torch.full((), initial_count, dtype=torch.float64, device=device)

    def update(self, samples: Tensor, peers: Peers = ALONE) -> None:
        """Take in samples of [N, *shape], those of all learners."""
        for share in peers.gather(*moments_of(samples)):
            count, mean, variance = merged(Moments(self.count, self.mean, self.variance), Moments(*share))
            self.count.copy_(count)
            self.mean.copy_(mean)
            self.variance.copy_(variance)


class Statistics:
    """Keeps the running moments of a policy's inputs and returns and copies them into its normalizers.

    The normalizers change only in `fold_in`, once per iteration after the last optimizer step. So what acted is what
    trains, and a version of the policy never changes its statistics. Values in units of the reward stay as they are
    when those of the returns change.
    """

    def __init__(self, policy: ActorCritic, peers: Peers = ALONE, initial_count: float = 0.0) -> None:
        self._peers, device = peers, policy.flat.device
        normalizers = {f"observations.{name}": norm for name, norm in policy.observation_normalizers.items()}
        self._normalizers = normalizers
        self._setters = {name: normalizer.set_moments for name, normalizer in normalizers.items()}
        if policy.return_normalizer is not None:
            normalizers["returns"] = policy.return_normalizer
            self._setters["returns"] = policy.set_return_moments
        self.moments = {
            name: RunningMoments(tuple(normalizer.mean.shape), device, initial_count)
            for name, normalizer in normalizers.items()
        }

    @torch.no_grad()
    def fold_in(self, observations: Mapping[str, Tensor], returns: Tensor) -> None:
        """Take in observations [N, *shape] per leaf and returns [N], and pass the new statistics to the policy."""
        for name, moments in self.moments.items():
            samples = returns if name == "returns" else observations[name.removeprefix("observations.")]
            moments.update(samples, self._peers)
            self._setters[name](moments.mean, moments.variance)

    @torch.no_grad()
    def follow_policy(self) -> None:
        """Takes mean and variance out of the normalizers, where those are of another policy now; counts stay.

        The vector of a policy holds no counts. The policies of a run have seen about as many samples as each other.
        """
        for name, moments in self.moments.items():
            mean, variance = self._normalizers[name].moments()
            moments.mean.copy_(mean)
            moments.variance.copy_(variance)
            moments.count.clamp_(min=1.0)

    def state_dict(self) -> dict[str, Tensor]:
        """The moments by name; float64."""
        return {
            f"{name}.{part}": tensor
            for name, moments in self.moments.items()
            for part, tensor in (("mean", moments.mean), ("variance", moments.variance), ("count", moments.count))
        }
