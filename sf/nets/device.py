"""Where networks compute: on the CPU, or on accelerators that learners and inference workers share.

Trajectories stay in shared memory of the host on every device. On CUDA the processes register that memory with the
driver, so a transfer goes straight from the place where observations were written to the device.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sf.errors import ResourceError
from sf.shared.arena import Arena, Array
from sf.shared.records import Record
from sf.shared.weights import PublishedWeights

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
MEGABYTE = 2**20
PORTABLE = 1
"""cudaHostRegisterPortable: for all devices that this process uses."""


def accelerators() -> list[str]:
    """Names of the accelerators that this installation of torch can compute on, such as cuda:0.

    Raises:
        ResourceError: there are none.
    """
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        raise ResourceError(
            f"device=gpu needs an accelerator, but torch {torch.__version__} finds none on this machine. Install a "
            "build of torch for your accelerator and its driver (https://pytorch.org/get-started/locally), or use "
            "--device=cpu."
        )
    return [f"{device.type}:{index}" for index in range(torch.accelerator.device_count())]


def use_device(accelerator: int | None, arena: Arena) -> torch.device:
    """The device that this process computes on from now on.

    Args:
        accelerator: None for the CPU, else a number among all that use accelerators, which are dealt in turn.
        arena: the shared memory that trajectories come from.

    Raises:
        ResourceError: there is no accelerator.
    """
    if accelerator is None:
        return CPU
    names = accelerators()
    device = torch.device(names[accelerator % len(names)])
    torch.get_device_module(device).set_device(device)
    if device.type == "cuda":
        # Else they round to ten bits, and differently for batches of other sizes: ratios would not be 1. Convolutions
        # do by default, products of matrices where TORCH_ALLOW_TF32_CUBLAS_OVERRIDE is set, as in some containers.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        pin(arena, device)
    return device


_pinned: weakref.WeakSet[Arena | PublishedWeights] = weakref.WeakSet()


def pin(owner: Arena | PublishedWeights, device: torch.device) -> None:
    """Has the driver of CUDA pin shared memory, so that the device gets at it without a copy in between."""
    if device.type != "cuda" or owner in _pinned:
        return
    _pinned.add(owner)
    memory, driver = np.frombuffer(owner.memory, np.uint8), torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if error := int(driver.cudaHostRegister(memory.ctypes.data, memory.nbytes, PORTABLE)):
        log.warning("Shared memory cannot be pinned (CUDA error %d); its transfers take another copy.", error)
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=device)  # else the next operation would be blamed for the error
        return
    weakref.finalize(owner, driver.cudaHostUnregister, memory.ctypes.data)


def to_host(vector: Tensor) -> Callable[[Array], None]:
    """A function that copies a vector to an array of the host, and returns when it is there."""
    if not vector.is_cpu:
        return lambda array: _copy(torch.from_numpy(array), vector)
    own = vector.detach().numpy()

    def write(array: Array) -> None:
        array[:] = own

    return write


def from_host(vector: Tensor) -> Callable[[Array], None]:
    """A function that copies an array of the host to a vector, and returns when the array is no longer read."""
    if not vector.is_cpu:
        return lambda array: _copy(vector, torch.from_numpy(array))
    own = vector.detach().numpy()

    def take(array: Array) -> None:
        own[:] = array

    return take


@torch.no_grad()
def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


def note_memory(device: torch.device, record: Record) -> None:
    """Writes down the memory on an accelerator in MiB: of tensors of this process, and all that torch has taken."""
    if device != CPU:
        module = torch.get_device_module(device)
        record["gpu_mem"] = module.memory_allocated(device) / MEGABYTE
        record["gpu_cache"] = module.memory_reserved(device) / MEGABYTE
