"""The state of a plan in checkpoints, which load without code: arrays as tensors, with a mark.

A checkpoint is a folder as `sf-train` writes it (`sf.storage.checkpoint`): complete or absent, and verified before it
is read. The state of a plan is one tensor of bytes in it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sf.errors import CheckpointError, UsageError
from sf.storage import checkpoint
from sf.storage.names import list_checkpoints

ARRAY = "numpy array"
"""The only key of a mapping that stands for an array."""
PLAIN = bool, int, float, complex, str, bytes, torch.Tensor, type(None)


PLAN = "plan"


def save(directory: Path, num_steps: int, frames: int, state: Any, keep: int | None) -> Path:
    """Writes a checkpoint beside earlier ones.

    Args:
        directory: of the checkpoints.
        num_steps: optimizer steps.
        frames: that were sampled.
        state: of the plan.
        keep: how many remain, this one included; None for all.

    Raises:
        UsageError: it holds something that no checkpoint takes.
        CheckpointError: it could not be written; earlier ones are as they were.
    """
    file = io.BytesIO()
    torch.save(storable(state, "The state of the plan"), file)
    content = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    directory.mkdir(parents=True, exist_ok=True)
    return checkpoint.save(directory, num_steps, frames, {PLAN: content}, {}, keep, replace=True)


def are_there(directory: Path) -> bool:
    """Whether a run goes on from a directory, or is refused because what it holds is damaged."""
    return bool(list_checkpoints(directory)) or any(directory.glob("damaged_checkpoint_*"))


def load(path: Path) -> Any:
    """The state in a checkpoint, or in the newest whole one of a directory.

    Raises:
        CheckpointError: there is none.
    """
    is_one = path.name.startswith(checkpoint.BEGINNING) and path.is_dir()
    found = checkpoint.load(path) if is_one else checkpoint.load_newest(path)
    if found is None or PLAN not in found.tensors:
        raise CheckpointError(
            f"There is no checkpoint of a plan in {path}. Give the path that save returned, or the directory that it "
            "was given. A run of sf-plan starts anew with --restart_behavior=restart or another --experiment."
        )
    return restored(torch.load(io.BytesIO(found.tensors[PLAN].numpy().tobytes()), weights_only=True))


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
    if isinstance(state, list) or type(state) is tuple:
        parts = [storable(part, f"{where}/{index}") for index, part in enumerate(state)]
        return tuple(parts) if isinstance(state, tuple) else parts
    if isinstance(state, (set, frozenset)):
        parts = [storable(part, f"{where}/{part}") for part in state]
        try:
            return set(parts)
        except TypeError:  # an array becomes what no set holds
            raise UsageError(f"{where} is a set of NumPy's numbers. Keep those of Python in it, x.item().") from None
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
