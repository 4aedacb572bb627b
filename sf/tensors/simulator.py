"""The simulator of a run in tensors, on the device that acts and learns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sf.console import Console
from sf.envs import EnvSource
from sf.envs.place import parameters_of
from sf.envs.tensor_batches import ManyTensors
from sf.errors import EnvError


def make_simulator(source: EnvSource, rows: int, seed: int, device: torch.device, overlaps: bool) -> ManyTensors:
    """All copies, on the device of the run where their maker takes one and the user has named none.

    Raises:
        EnvError: they are not in tensors.
    """
    if "device" in parameters_of(source.vector_factory) and "device" not in source.kwargs:
        source = replace(source, kwargs={**source.kwargs, "device": str(device)})
    many = source.make_vector(rows, seed)
    if not isinstance(many, ManyTensors):
        raise EnvError(f"{source.env_id} is no simulator in tensors. Leave --vectorization=tensors out.")
    how = (
        "by two threads of one process. --serial_mode=True takes turns"
        if overlaps
        else "by one process and in turn (--serial_mode=True --async_rl=False)"
    )
    Console().line(
        f"{source.env_id} is stepped, acted in and learned from on {device}, {how}. "
        "--vectorization=native takes processes."
    )
    return many


def queue_of_its_own(device: torch.device) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """A context in which operations wait for no others of the device but those that were asked for so far."""
    if device.type != "cuda":
        return contextlib.nullcontext
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return lambda: torch.cuda.stream(stream)
