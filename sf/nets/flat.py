"""All parameters and buffers of a module as one contiguous vector.

    vector      [ parameters ............................ | buffers ...... ]
    parameters  [ the same memory, as one nn.Parameter .. ]
    gradient    [ each p.grad is a view into this ....... ]

Adam, clipping the gradient and zeroing it are one operation each, and publishing the policy is one copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn


class FlatVariables:
    """Moves the variables of a module into one float32 vector on a device and makes them views into it.

    The tensor objects stay the same ones, so references to them that were taken before stay good.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        variables = list(named_variables(module))
        wrong = [f"{name} ({variable.dtype})" for name, variable in variables if variable.dtype != torch.float32]
        assert not wrong, f"a policy holds float32 only, found {', '.join(wrong)}"
        self.vector = torch.cat([variable.detach().reshape(-1).to(device) for _, variable in variables])
        num_trainable = sum(p.numel() for p in module.parameters())
        self.parameters = nn.Parameter(self.vector[:num_trainable])
        self.gradient = self.parameters.grad = torch.zeros(num_trainable, dtype=torch.float32, device=device)
        start = 0
        for _, variable in variables:
            stop = start + variable.numel()
            variable.data = self.vector[start:stop].view(variable.shape)
            if isinstance(variable, nn.Parameter):
                # A gradient that is there already is added to in place, so backward() writes into the flat one.
                variable.grad = self.gradient[start:stop].view(variable.shape)
            start = stop


def named_variables(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, then buffers, each in the order of registration."""
    yield from module.named_parameters()
    yield from module.named_buffers()
