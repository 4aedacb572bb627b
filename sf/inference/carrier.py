"""Brings observations from shared memory to the network, and its answers back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sf.inference.actors import NO_MEMORY, Answers
from sf.inference.packing import Packing, PinnedWords, packed
from sf.nets.device import CPU
from sf.policy import PolicyStep
from sf.shared.arena import Array


class Carrier(Protocol):
    """Between the host and a device."""

    def take(self, parts: Sequence[Array]) -> Tensor:
        """Rows of several groups as one batch on the device."""

    def bring(self, step: PolicyStep) -> Answers:
        """The answer of a policy, on the host."""


class OnHost:
    """The network computes on the CPU, so that the observations of a single group need not be copied."""

    def take(self, parts: Sequence[Array]) -> Tensor:
        """See `Carrier`."""
        return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))

    def bring(self, step: PolicyStep) -> Answers:
        """See `Carrier`."""
        info, memory = step.info, step.state
        return Answers(
            step.action.numpy(),
            info.log_probability.numpy(),
            info.value_prediction.numpy(),
            memory.numpy() if isinstance(memory, Tensor) else NO_MEMORY,
            {name: head.numpy() for name, head in info.heads.items()},
        )


class ToDevice:
    """One transfer for each group and leaf, and one for everything that comes back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._words = PinnedWords()

    def take(self, parts: Sequence[Array]) -> Tensor:
        """See `Carrier`; does not wait. No process writes there before the answer, and the answer waits for it."""
        first = torch.from_numpy(parts[0])
        shape = (sum(map(len, parts)), *first.shape[1:])
        there = torch.empty(shape, dtype=first.dtype, device=self._device)
        copy_rows(parts, there)
        return there

    def bring(self, step: PolicyStep) -> Answers:
        """See `Carrier`; good until the next answers."""
        return Packing(step).unpack(self._words.take(packed(step)))


def copy_rows(parts: Sequence[Array], there: Tensor) -> None:
    """Begins the transfers of rows of several groups into the first rows on a device."""
    start = 0
    for part in parts:
        stop = start + len(part)
        there[start:stop].copy_(torch.from_numpy(part), non_blocking=True)
        start = stop


def carrier_to(device: torch.device) -> Carrier:
    """The one that fits the device."""
    return OnHost() if device == CPU else ToDevice(device)
