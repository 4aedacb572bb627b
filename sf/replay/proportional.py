"""Draws places in proportion to numbers, of which a few change between two draws.

A sum over a million numbers takes longer than an optimizer step. So they lie in blocks, each with its sum. A draw of n
sums over the blocks, and over the numbers of n of them.
"""

from __future__ import annotations

import numpy as np

from sf.shared.arena import Array

PLACES_OF_A_BLOCK = 64
BELOW_ONE = 1.0 - 1e-12


class ProportionalSampler:
    """Places with a share each; 0 is never drawn."""

    def __init__(self, capacity: int) -> None:
        """All shares are 0."""
        num_blocks = -(-capacity // PLACES_OF_A_BLOCK)
        self.capacity, self._shares = capacity, np.zeros((num_blocks, PLACES_OF_A_BLOCK))
        self._sums, self._minima = np.zeros(num_blocks), np.full(num_blocks, np.inf)

    def set(self, places: Array, shares: Array) -> None:
        """New shares; the last one counts where a place comes twice.

        Args:
            places: [n] whole numbers.
            shares: [n] finite and not negative.

        Raises:
            ValueError: they are something else, which would spoil every later draw.
        """
        values = np.asarray(shares)
        if values.shape != places.shape or not (np.isfinite(values) & (values >= 0)).all():
            found = np.array2string(values, threshold=8)
            raise ValueError(
                f"Expected a finite priority of 0 or more for each of {len(places)} places, found {found}."
            )
        self._shares.reshape(-1)[places] = shares
        changed = np.unique(places // PLACES_OF_A_BLOCK)
        blocks = self._shares[changed]
        self._sums[changed] = blocks.sum(1)
        self._minima[changed] = np.where(blocks > 0, blocks, np.inf).min(1)

    def at(self, points: Array) -> Array:
        """[n] the places at points from 0 up to, but not with, 1, where each has a stretch as long as its share.

        Raises:
            ValueError: all shares are 0.
        """
        ends = self._sums.cumsum()
        if ends[-1] <= 0:
            raise ValueError("All priorities are 0, so nothing can be drawn. Add a small number to each of them.")
        points = np.minimum(points * ends[-1], np.nextafter(ends[-1], 0))  # rounding goes beyond
        blocks = ends.searchsorted(points, side="right")
        within = self._shares[blocks].cumsum(1)
        # Rounding can put a point before its block or at its end: the first or last place there with a share is meant.
        points = np.maximum(points - (ends[blocks] - self._sums[blocks]), 0)
        rows = (within <= np.minimum(points, within[:, -1] * BELOW_ONE)[:, None]).sum(1)
        places: Array = blocks * PLACES_OF_A_BLOCK + rows
        return places

    def shares(self, places: Array) -> Array:
        """[n] the shares of these places."""
        shares: Array = self._shares.reshape(-1)[places]
        return shares

    @property
    def smallest(self) -> float:
        """The smallest share above 0."""
        return float(self._minima.min())
