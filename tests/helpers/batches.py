"""Batches by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from sf.learner.batch import Batch
from sf.shared.slot_fields import OBSERVATIONS


def make_batch(
    *,
    observations: dict[str, Tensor],
    initial_memory: Tensor,
    streams: Tensor,
    values: Tensor,
    bootstrap_values: Tensor,
    behavior_log_probs: Tensor,
    is_new: Tensor | None = None,
    **by_step: Tensor,
) -> Batch:
    """A batch of columns under the names that readers use; every trajectory goes on unless `is_new` is given."""
    leaves = {f"{OBSERVATIONS}{name}": leaf for name, leaf in observations.items()}
    all_values = torch.cat([values, bootstrap_values.unsqueeze(0)])
    is_new = torch.zeros(len(streams), dtype=torch.bool) if is_new is None else is_new
    return Batch(
        by_step | leaves | {"values": all_values, "log_probs": behavior_log_probs},
        {"initial_memory": initial_memory, "streams": streams, "is_new": is_new},
    )
