"""What brings observations from shared memory to the network and its answers back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sf.arena import Array
from sf.device import CPU
from sf.inference.actor import NO_MEMORY, Answers
from sf.policy import PolicyStep


class Carrier(Protocol):
    """Between the host and a device."""

    def take(self, parts: Sequence[Array]) -> Tensor:
        """Rows of several groups as one batch on the device."""

    def bring(self, step: PolicyStep) -> Answers:
        """What a policy says, on the host."""


class OnHost:
    """The network computes on the CPU, so that what one group asks need not be copied."""

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

    def take(self, parts: Sequence[Array]) -> Tensor:
        """See `Carrier`; does not wait. Nobody writes there before the answer, and the answer waits for it."""
        there = [torch.from_numpy(part).to(self._device, non_blocking=True) for part in parts]
        return there[0] if len(there) == 1 else torch.cat(there)

    def bring(self, step: PolicyStep) -> Answers:
        """See `Carrier`. Side by side in float64, which holds every float32 and every choice exactly."""
        info, memory = step.info, step.state
        columns = [step.action, info.log_probability, info.value_prediction]
        columns += [memory] if isinstance(memory, Tensor) else []
        wide = [(column if column.dim() > 1 else column.unsqueeze(1)).to(torch.float64) for column in columns]
        together = torch.cat(wide, 1).cpu().numpy()
        actions, log_probs, values, *rest = np.split(together, np.cumsum([part.shape[1] for part in wide])[:-1], 1)
        return Answers(
            actions.reshape(step.action.shape),
            log_probs[:, 0],
            values[:, 0],
            rest[0] if rest else NO_MEMORY,
        )


def carrier_to(device: torch.device) -> Carrier:
    """The one that fits the device."""
    return OnHost() if device == CPU else ToDevice(device)
