"""Distributions of numbers, by their means and deviations."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from sf.config import ModelConfig
from sf.nets.columns import Columns
from sf.nets.outputs import GradientOfParams

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class DiagonalGaussian(nn.Module):
    """One normal distribution for each of d numbers; the parameters are means, or means and log-deviations.

    With `adaptive_stddev` both are parameters. Without it the log-deviations are free, the same for all observations.
    """

    def __init__(self, size: int, config: ModelConfig) -> None:
        super().__init__()
        self.size = self.noise_size = size
        self.num_logits = 0
        self.num_params = 2 * size if config.adaptive_stddev else size
        self.initial_log_std, self._limits = math.log(config.initial_stddev), config.log_stddev_limits
        free = torch.full((size,), self.initial_log_std)
        self.log_std = None if config.adaptive_stddev else nn.Parameter(free)
        self._free_log_std = (self.log_std,)

    def noise(self, num_rows: int, generator: torch.Generator | None, device: torch.device | None = None) -> Tensor:
        """[B, d] standard normal numbers."""
        return torch.empty(num_rows, self.size, dtype=torch.float32, device=device).normal_(generator=generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        """Actions [B, d]."""
        mean, log_std = self.moments(params)
        return torch.addcmul(mean, noise, log_std.exp())

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, d] and their joint log-probabilities [B]."""
        actions = self.draw(params, noise)
        return actions, self._log_probs(*self.moments(params), actions)

    def best(self, params: Tensor) -> Tensor:
        """The means [B, d]."""
        return self.moments(params)[0]

    def mode(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """The means [B, d] and their joint log-probabilities [B]."""
        mean, log_std = self.moments(params)
        return mean, self._log_probs(mean, log_std, mean)

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Joint log-probabilities of actions [B, d] and joint entropies, both [B]."""
        mean, log_std = self.moments(params)
        return self._log_probs(mean, log_std, actions), self._entropy(params, log_std)

    def evaluate_by_hand(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, GradientOfParams]:
        """The result of `evaluate`, and its gradient; that of free deviations is added to theirs.

        With z = (action - mean) / std, d log p / d mean = z / std and d log p / d log_std = z² - 1.
        """
        mean, log_std = self.moments(params)
        inverse = torch.exp(-log_std)
        distances = (actions - mean) * inverse

        def gradient(d_log_probs: Tensor, d_entropy: Tensor) -> Tensor:
            d_log_probs, d_entropy = d_log_probs.unsqueeze(-1), d_entropy.unsqueeze(-1)
            d_mean = distances * d_log_probs
            d_log_std = (d_mean * distances).sub_(d_log_probs).add_(d_entropy)
            d_mean.mul_(inverse)
            if self.log_std is None:
                shifted = params[..., self.size :] + self.initial_log_std
                low, high = self._limits
                d_log_std.masked_fill_((shifted < low) | (shifted > high), 0.0)
                return torch.cat([d_mean, d_log_std], -1)
            assert self.log_std.grad is not None
            self.log_std.grad.add_(d_log_std.sum(0))
            return d_mean

        return self._densities(distances, log_std), self._entropy(params, log_std), gradient

    def limit_stddev(self) -> None:
        """Brings free deviations back into their limits; an entropy bonus widens those that matter for no reward."""
        if self.log_std is not None:
            self.log_std.detach().clamp_(*self._limits)

    def stddev(self, params: Tensor) -> Tensor:
        """Standard deviations, [d] or [B, d]."""
        return self.moments(params)[1].exp()

    def columns(self, params: Tensor) -> Columns:
        """Mean and standard deviation [B] of each number."""
        mean, log_std = self.moments(params)
        return list(zip(mean.unbind(-1), log_std.exp().expand_as(mean).unbind(-1), strict=True))

    def moments(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Means [B, d] and logarithms of the deviations, [d] or [B, d]."""
        (log_std,) = self._free_log_std
        if log_std is not None:
            return params, log_std
        # The head starts near 0, hence the shift; the limits keep exp and its gradient finite.
        adaptive = (params[..., self.size :] + self.initial_log_std).clamp(*self._limits)
        return params[..., : self.size], adaptive

    def _log_probs(self, mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
        return self._densities((actions - mean) * torch.exp(-log_std), log_std)

    def _densities(self, distances: Tensor, log_std: Tensor) -> Tensor:
        """[B] logarithms, from the distances to the mean in standard deviations."""
        log_densities = -0.5 * distances.square() - log_std
        return log_densities.sum(-1) - self.size * HALF_LOG_TWO_PI

    def _entropy(self, params: Tensor, log_std: Tensor) -> Tensor:
        entropy = log_std.sum(-1) + self.size * (0.5 + HALF_LOG_TWO_PI)
        return entropy.expand(len(params))


class NoisyAction(DiagonalGaussian):
    """Numbers in [-1, 1] that the network gives, with noise of one deviation for all of them.

    The deviation is a buffer, so it is published and saved with the weights. The environment limits the sum.
    """

    log_noise: Tensor

    def __init__(self, size: int, config: ModelConfig) -> None:
        super().__init__(size, replace(config, adaptive_stddev=False))
        self.log_std, self._free_log_std = None, (None,)
        self.register_buffer("log_noise", torch.full((), math.log(0.1)))

    def moments(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """See `DiagonalGaussian`."""
        return params.tanh(), self.log_noise.expand(self.size)
