"""From stored actions to what a simulator in tensors executes, as `sf.envs.actions` does with arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from sf.errors import EnvError
from sf.spaces import ActionBounds
from sf.spaces.scaling import scale_of

Convert = Callable[[Tensor], Tensor]
"""From [rows] or [rows, D] to [rows, ...] of the action space."""


def tensor_converter(space: Any, bounds: ActionBounds, device: torch.device) -> Convert:
    """The function for the actions of a space. They share no memory with what the policy has drawn.

    Args:
        space: of one copy.
        bounds: how numbers come into the bounds of a Box.
        device: of the actions.

    Raises:
        EnvError: a nest of spaces, which no single tensor holds.
    """
    if isinstance(space, spaces.Discrete):
        start, kind = int(space.start), getattr(torch, str(space.dtype))
        return lambda actions: (actions + start).to(kind)  # never the tensor of the policy, which it writes again
    if not isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise EnvError(
            f"A simulator in tensors has the action space {space}, expected a Box, a Discrete, a MultiDiscrete or a "
            "MultiBinary, whose actions are one tensor."
        )

    def there(array: Any) -> Tensor:
        return torch.tensor(np.array(array), device=device)

    shape, kind = tuple(space.shape), getattr(torch, str(space.dtype))
    if not isinstance(space, spaces.Box):
        starts = there(np.broadcast_to(getattr(space, "start", 0), shape))
        return lambda actions: (actions.view(-1, *shape) + starts).to(kind)
    low, high = space.low, space.high
    limits = there(low), there(high)
    if bounds == "tanh":
        middle, half = there((high + low) / 2), there((high - low) / 2)
        return lambda actions: (middle + half * torch.tanh(actions.view(-1, *shape))).to(kind)
    if bounds == "clip":
        return lambda actions: actions.view(-1, *shape).clamp(*limits).to(kind)
    middle, half = map(there, scale_of(low, high))
    return lambda actions: (middle + half * actions.view(-1, *shape)).clamp(*limits).to(kind)
