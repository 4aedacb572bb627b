"""The distribution of each column of an action, and how far two of them are apart."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

Columns = list[tuple[Tensor, ...]]
"""Distribution of each number or choice of an action: logits [N, n], or mean and deviation [N]."""


def kl_divergence(before: Columns, now: Columns) -> Tensor:
    """[N] KL divergence of the actions under distributions from those under earlier ones."""
    total = torch.zeros(len(now[0][0]), device=now[0][0].device)
    for old, new in zip(before, now, strict=True):
        if len(old) == 1:
            old_logs, new_logs = (functional.log_softmax(logits, -1) for (logits,) in (old, new))
            total = total + (old_logs.exp() * (old_logs - new_logs)).sum(-1)
        else:
            (old_mean, old_std), (new_mean, new_std) = old, new
            squares = (old_std.square() + (old_mean - new_mean).square()) / (2 * new_std.square())
            total = total + (new_std / old_std).log() + squares - 0.5
    return total
