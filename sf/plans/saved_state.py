"""The state of policies in a checkpoint, which loads without code: arrays as tensors, with a mark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sf.errors import UsageError

ARRAY = "numpy array"
"""The only key of a mapping that stands for an array."""
PLAIN = bool, int, float, complex, str, bytes, torch.Tensor, type(None)


def storable(state: Any, where: str) -> Any:
    """What `torch.load` reads back with ``weights_only``.

    Args:
        state: of a policy.
        where: it comes from, for messages.

    Raises:
        UsageError: it holds something else than numbers, texts, arrays and tensors.
    """
    if isinstance(state, (np.ndarray, np.generic)) and state.dtype.kind in "biufc":
        return {ARRAY: torch.as_tensor(np.array(state))}
    if isinstance(state, Mapping):
        return {name: storable(part, f"{where}/{name}") for name, part in state.items()}
    if isinstance(state, (list, tuple)):
        parts = [storable(part, f"{where}/{index}") for index, part in enumerate(state)]
        return tuple(parts) if isinstance(state, tuple) else parts
    if isinstance(state, (set, frozenset)):
        return {storable(part, f"{where}/{part}") for part in state}
    if isinstance(state, PLAIN):
        return state
    raise UsageError(
        f"{where} is a {type(state).__name__}. A checkpoint takes numbers, texts, arrays and tensors, and lists, "
        "tuples, sets and dicts of them."
    )


def restored(state: Any) -> Any:
    """The inverse of `storable`."""
    if isinstance(state, Mapping):
        if state.keys() == {ARRAY}:
            return state[ARRAY].numpy()[()]
        return {name: restored(part) for name, part in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(restored(part) for part in state)
    return state
