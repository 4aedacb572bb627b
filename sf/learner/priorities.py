"""Draws transitions by their error: prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952, section 3).

A transition is drawn with the probability p^alpha / sum of p^alpha, where p is its last error. New ones come first. The
weight (1 / (n P))^beta of each takes back what the uneven draw does to a mean; here it is divided by the largest one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sf.replay.proportional import ProportionalSampler

LEAST = 1e-6
"""Added to each error, so that everything is drawn now and then."""


class Priorities:
    """How likely each place of a ring is drawn."""

    def __init__(self, alpha: float = 0.6, beta: float = 0.4) -> None:
        """Knows no transitions yet.

        Args:
            alpha: 0 draws all alike.
            beta: 1 takes back the uneven draw entirely; may be changed between draws.
        """
        self._alpha, self.beta = alpha, beta
        self._shares = ProportionalSampler(0)
        """Weight p^alpha of each place, 0 where nothing may be drawn."""
        self._most = 1.0

    def take_in(self, drawable: Tensor, places: Tensor) -> None:
        """New transitions.

        Args:
            drawable: [all places of the ring] bool, those that may be drawn.
            places: [n] of the new ones.
        """
        if self._shares.capacity != len(drawable):
            self._shares = ProportionalSampler(len(drawable))
        self._shares.set(places.numpy(), drawable[places].numpy() * self._most**self._alpha)

    def draw(self, number: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Places [N], one of each N-th part of all probability, and their weights [N], float32."""
        points = (torch.arange(number) + torch.rand(number, dtype=torch.float64, generator=generator)) / number
        places = self._shares.at(points.numpy())
        shares = torch.from_numpy(self._shares.shares(places))
        return torch.from_numpy(places), (shares / shares.min()).pow(-self.beta).to(torch.float32)

    def update(self, places: Tensor, errors: Tensor) -> None:
        """New errors [N] of the transitions at these places.

        Raises:
            ValueError: they are no N finite numbers.
        """
        priorities = errors.detach().abs().cpu().to(torch.float64) + LEAST
        self._shares.set(places.numpy(), priorities.pow(self._alpha).numpy())
        self._most = max(self._most, priorities.max().item())
