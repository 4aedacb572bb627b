"""Draws transitions by their error: prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952, section 3).

A transition is drawn with the probability p^alpha / sum of p^alpha, where p is its last error. New ones come first. The
weight (1 / (n P))^beta of each takes back what the uneven draw does to a mean; here it is divided by the largest one.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
        self._scaled = torch.zeros(0, dtype=torch.float64)
        """[places] p^alpha, 0 where nothing may be drawn."""
        self._most = 1.0

    def take_in(self, drawable: Tensor, places: Tensor) -> None:
        """New transitions.

        Args:
            drawable: [all places of the ring] bool, those that may be drawn.
            places: [n] of the new ones.
        """
        if len(self._scaled) != len(drawable):
            self._scaled = torch.zeros(len(drawable), dtype=torch.float64)
        self._scaled[places] = drawable[places].to(torch.float64) * self._most**self._alpha

    def draw(self, number: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Places [N], one of each N-th part of all probability, and their weights [N], float32."""
        sums = self._scaled.cumsum(0)
        points = (torch.arange(number) + torch.rand(number, dtype=torch.float64, generator=generator)) / number
        points = (points * sums[-1]).clamp_(max=torch.nextafter(sums[-1], sums.new_zeros(())))  # rounding goes beyond
        places = torch.searchsorted(sums, points, right=True)
        shares = self._scaled[places] / sums[-1]
        weights = (shares * self._scaled.count_nonzero()).pow(-self.beta)
        return places, (weights / weights.max()).to(torch.float32)

    def update(self, places: Tensor, errors: Tensor) -> None:
        """New errors [N] of the transitions at these places."""
        priorities = errors.detach().abs().cpu().to(torch.float64) + LEAST
        self._most = max(self._most, priorities.max().item())
        self._scaled[places] = priorities.pow(self._alpha)
