"""What policy lag does to training: importance ratios, effective sample size and clipping in buckets of lag.

Buckets are 0, 1, 2-3, 4-7, ... optimizer steps, each twice as wide as the one before, and the last one is open.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sf.learner.losses import effective_sample_size
from sf.learner.peers import ALONE, Peers
from sf.shared.arena import Array

NUM_BUCKETS = 9
MOST_LOG_RATIO = 300.0
"""Beyond which a ratio counts as this one, so that the sum of squares is a number."""


def bucket_name(index: int) -> str:
    """``0``, ``1``, ``2-3``, ``4-7``, ..., ``128+``."""
    first = 2 ** (index - 1) if index else 0
    if index == NUM_BUCKETS - 1:
        return f"{first}+"
    return str(first) if index < 2 else f"{first}-{2 * first - 1}"


BUCKETS = tuple(bucket_name(index) for index in range(NUM_BUCKETS))
KINDS = ("ratio_at_lag", "ESS_at_lag", "clipped_at_lag")
TAGS = frozenset(f"{kind}/{bucket}" for kind in KINDS for bucket in BUCKETS) | {"clipfrac"}


class ByLag:
    """The minibatches of one dataset; nothing is computed before it is read."""

    def __init__(self) -> None:
        """Starts with nothing."""
        self._minibatches: list[tuple[Array, Tensor, Tensor]] = []

    def add(self, lags: Array, log_ratios: Tensor, clipped: Tensor) -> None:
        """Takes in one minibatch, or this learner's share of it.

        Args:
            lags: [N] int64 on the host, in optimizer steps.
            log_ratios: [N] logarithms of the importance ratios to the policy that acted.
            clipped: [N] bool, whether the objective clips them.
        """
        self._minibatches.append((lags, log_ratios, clipped))

    def read(self, peers: Peers = ALONE) -> dict[str, float]:
        """Numbers of the buckets that have transitions, over all learners: ratio, effective sample size, clipped share.

        ``clipfrac`` is the clipped share of all of them.
        """
        totals = torch.stack([share for (share,) in peers.gather(self._sums())]).sum(0).tolist()
        found: dict[str, float] = {}
        if count := sum(num for num, *_ in totals):
            found["clipfrac"] = sum(clipped for *_, clipped in totals) / count
        for name, (num, ratio, square, clipped) in zip(BUCKETS, totals, strict=True):
            if not num:
                continue
            size = effective_sample_size(num, ratio, square) if square else math.nan
            found |= zip((f"{kind}/{name}" for kind in KINDS), (ratio / num, size, clipped / num), strict=True)
        return found

    @torch.no_grad()
    def _sums(self) -> Tensor:
        """[buckets, 4] float64 on the host: transitions, ratios, their squares, and clipped ones."""
        sums = torch.zeros(NUM_BUCKETS, 4, dtype=torch.float64)
        if not self._minibatches:
            return sums
        lags, log_ratios, clipped = zip(*self._minibatches, strict=True)
        # 0 stays 0, and n goes to the number of its binary digits.
        buckets = np.minimum(np.frexp(np.concatenate(lags))[1], NUM_BUCKETS - 1)
        ratios = torch.cat(log_ratios).cpu().to(torch.float64).clamp(max=MOST_LOG_RATIO).exp()
        facts = torch.stack([torch.ones_like(ratios), ratios, ratios.square(), torch.cat(clipped).cpu().to(ratios)], 1)
        return sums.index_add_(0, torch.from_numpy(buckets.astype(np.int64)), facts)
