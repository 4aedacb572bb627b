"""Brings observations from shared memory to the network, and its answers back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sf.inference.actors import NO_MEMORY, Answers
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
        )


class ToDevice:
    """One transfer for each group and leaf, and one for everything that comes back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._words = torch.empty(0, dtype=torch.int32)

    def take(self, parts: Sequence[Array]) -> Tensor:
        """See `Carrier`; does not wait. No process writes there before the answer, and the answer waits for it."""
        tensors = [torch.from_numpy(part) for part in parts]
        shape, sizes = tensors[0].shape[1:], [len(tensor) for tensor in tensors]
        there = torch.empty((sum(sizes), *shape), dtype=tensors[0].dtype, device=self._device)
        for rows, tensor in zip(torch.split(there, sizes), tensors, strict=True):
            rows.copy_(tensor, non_blocking=True)
        return there

    def bring(self, step: PolicyStep) -> Answers:
        """See `Carrier`. Side by side as words of 32 bits, of any meaning; good until the next answers."""
        info, memory = step.info, step.state
        columns = [step.action, info.log_probability, info.value_prediction]
        columns += [memory] if isinstance(memory, Tensor) else []
        words = [_words_of(column) for column in columns]
        together = self._on_host(torch.cat(words, 1)).numpy()
        stops = np.cumsum([part.shape[1] for part in words])
        actions, log_probs, values, *rest = np.split(together, stops[:-1], 1)
        return Answers(
            actions.view(_numpy_dtype(step.action)).reshape(step.action.shape),
            log_probs.view(np.float32)[:, 0],
            values.view(np.float32)[:, 0],
            rest[0].view(np.float32) if rest else NO_MEMORY,
        )

    def _on_host(self, words: Tensor) -> Tensor:
        """Copied into memory that is pinned once, where the device writes by itself."""
        if self._words.numel() < words.numel():
            self._words = torch.empty(words.numel(), dtype=torch.int32, pin_memory=words.is_cuda)
        return self._words[: words.numel()].view(words.shape).copy_(words)


def _words_of(column: Tensor) -> Tensor:
    """The bits of [B] or [B, D] as [B, words]."""
    return (column if column.dim() > 1 else column.unsqueeze(1)).contiguous().view(torch.int32)


def _numpy_dtype(tensor: Tensor) -> np.dtype[Any]:
    return np.dtype(str(tensor.dtype).removeprefix("torch."))


def carrier_to(device: torch.device) -> Carrier:
    """The one that fits the device."""
    return OnHost() if device == CPU else ToDevice(device)
