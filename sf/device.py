"""Where networks compute: on the CPU, or on accelerators that learners and inference workers share.

Trajectories stay in shared memory of the host, whatever computes. On CUDA the processes register that memory with the
driver, so that what they transfer goes straight from where the environments were written to the device.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor

from sf.arena import Arena, Array
from sf.errors import ResourceError
from sf.records import Record

CPU = torch.device("cpu")


def accelerators() -> list[str]:
    """Names of the accelerators that this installation of torch can compute on, such as cuda:0."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return [] if device is None else [f"{device.type}:{index}" for index in range(torch.accelerator.device_count())]


def ensure_accelerators() -> list[str]:
    """The same.

    Raises:
        ResourceError: there are none.
    """
    if found := accelerators():
        return found
    raise ResourceError(
        f"device=gpu needs an accelerator, but torch {torch.__version__} finds none on this machine. Install a build "
        "of torch for your accelerator and its driver (https://pytorch.org/get-started/locally), or use --device=cpu."
    )


def use_device(accelerator: int | None, arena: Arena) -> torch.device:
    """What this process computes on from now on.

    Args:
        accelerator: None for the CPU, else a number among all that use accelerators, which are dealt in turn.
        arena: the memory that trajectories come from.

    Raises:
        ResourceError: there is no accelerator, or it cannot read the memory.
    """
    if accelerator is None:
        return CPU
    names = ensure_accelerators()
    device = torch.device(names[accelerator % len(names)])
    torch.get_device_module(device).set_device(device)
    if device.type == "cuda" and arena not in _registered:
        _register(arena)
    return device


_registered: weakref.WeakSet[Arena] = weakref.WeakSet()


def _register(arena: Arena) -> None:
    """Has the driver pin the memory, so that the device reads it without a copy in between."""
    memory, driver = np.frombuffer(arena.memory, np.uint8), torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if error := int(driver.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)):
        raise ResourceError(
            f"The driver cannot pin the {memory.nbytes / 2**20:,.0f} MiB of shared memory (CUDA error {error}). Use a "
            "smaller --rollout, --num_envs_per_worker, --num_workers or --batch_size, or --device=cpu."
        )
    _registered.add(arena)
    weakref.finalize(arena, driver.cudaHostUnregister, memory.ctypes.data)


MEGABYTE = 2**20


def note_memory(device: torch.device, record: Record) -> None:
    """Writes down what tensors of this process take on an accelerator, and what torch has taken for them, in MB."""
    if device != CPU:
        module = torch.get_device_module(device)
        record["gpu_mem"] = module.memory_allocated() / MEGABYTE
        record["gpu_cache"] = module.memory_reserved() / MEGABYTE


class FlatOnHost:
    """The flat vector of a network as an array of the host: its own memory on the CPU, a copy of another device's."""

    def __init__(self, flat: Tensor) -> None:
        self._flat = flat
        self._copy = flat if flat.is_cpu else torch.empty(flat.shape, pin_memory=flat.is_cuda)
        self.array: Array = self._copy.detach().numpy()
        """[size] float32."""

    def fetch(self) -> Array:
        """What the vector holds now."""
        if self._copy is not self._flat:
            self._copy.copy_(self._flat)
        return self.array

    def store(self) -> None:
        """Gives the vector what was written to `array`."""
        if self._copy is not self._flat:
            with torch.no_grad():
                self._flat.copy_(self._copy)
