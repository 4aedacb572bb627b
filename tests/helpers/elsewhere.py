"""An accelerator made of numbers that the CPU cannot reach, for machines that have none.

It computes with the kernels of the CPU behind tensors of another device: what mixes devices, wants a numpy array of
such a tensor, or forgets to move something fails as it would on a real one. It says nothing about speed, and it has no
recurrent cells, which have kernels of their own on every device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"

aten = torch.ops.aten


class Hidden(Tensor):
    """A tensor elsewhere."""

    numbers: Tensor
    """The same on the CPU; those of a view are a view."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, numbers: Tensor) -> Hidden:
        hidden: Hidden = Tensor._make_wrapper_subclass(
            cls, numbers.shape, numbers.stride(), numbers.storage_offset(), dtype=numbers.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        hidden.numbers = numbers
        return hidden

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(op, *args, **(kwargs or {}))

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        self.numbers = _numbers(other)


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs an operation of which something is elsewhere, or shall be."""
    special = SPECIAL.get(op)
    if special is not None:
        return special(*args, **kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    for tensor in tensors:
        if not isinstance(tensor, Hidden) and tensor.dim():  # a single number may come from the CPU
            raise RuntimeError(f"{op}: expected tensors elsewhere, found {tuple(tensor.shape)} on {tensor.device}")
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    known = {id(tensor.numbers): tensor for tensor in tensors if isinstance(tensor, Hidden)}
    results = op(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))

    def hidden(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return known[id(value)] if id(value) in known else Hidden(value)

    return tree_map(hidden, results)


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, Hidden) else value


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _numbers(target).copy_(_numbers(source))
    return target


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return _copy_from(source, target)


def _to_copy(
    source: Tensor, *, device: torch.device | None = None, non_blocking: bool = False, **options: Any
) -> Tensor:
    copied: Tensor = aten._to_copy.default(_numbers(source), **options)
    goes_elsewhere = isinstance(source, Hidden) if device is None else device.type == NAME
    return Hidden(copied) if goes_elsewhere else copied


def _convolution(*args: Any) -> Any:
    return run(aten.convolution.default, *args)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *args: Any) -> Any:
    return run(aten.convolution_backward.default, gradient, x, weight, [weight.shape[0]], *args)


def _number(tensor: Hidden) -> Any:
    return tensor.numbers.item()


SPECIAL: dict[Any, Callable[..., Any]] = {
    aten._copy_from.default: _copy_from,
    aten.copy_.default: _copy,
    aten._to_copy.default: _to_copy,
    aten.convolution_overrideable.default: _convolution,
    aten.convolution_backward_overrideable.default: _convolution_backward,
    aten._local_scalar_dense.default: _number,
}


class Event:
    """Transfers here are never under way, but who has not waited for them is known."""

    recorded = unfinished = 0

    def record(self) -> None:
        Event.recorded += 1
        Event.unfinished += 1

    def synchronize(self) -> None:
        Event.unfinished = 0


class Device:
    """What torch asks of a module like torch.cuda."""

    Event = Event

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def set_device(self, device: torch.device) -> None:
        assert device == torch.device(NAME, 0)

    def current_device(self) -> int:
        return 0

    def device(self, index: int) -> contextlib.AbstractContextManager[None]:
        assert index == 0
        return contextlib.nullcontext()

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        seeds_of_all.append(seed)

    def manual_seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)  # random numbers come from the CPU

    def get_rng_state(self, device: torch.device) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: torch.device) -> None:
        torch.set_rng_state(state)

    def memory_allocated(self, device: torch.device) -> int:
        return 3 * 2**20

    def memory_reserved(self, device: torch.device) -> int:
        return 5 * 2**20


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True


seeds_of_all: list[int] = []
"""With which the generators of all devices were set."""
places_of_generators: list[str] = []
"""Types of the devices that generators were asked for, which the generators themselves cannot tell."""


class _Generator(torch.Generator):
    """Random numbers come from the CPU."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        places_of_generators.append(torch.device(device).type)
        return super().__new__(cls)


def install() -> list[Any]:
    """Makes it the accelerator of this process, for as long as what is returned is kept."""
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=Device(), hook=_Hooks())
    library: Any = torch.library.Library
    everything, some = library("_", "IMPL"), library("aten", "IMPL")
    everything.fallback(run, "PrivateUse1")
    for op in (aten.arange.default, aten.arange.start, aten.arange.start_step):  # else made of one that changes sizes
        some.impl(op, partial(run, op), "PrivateUse1")
    torch.Generator = _Generator  # type: ignore[misc]
    orthogonal = torch.nn.init.orthogonal_  # transposes in place, which tensors of this kind cannot do
    vars(torch.nn.init)["orthogonal_"] = lambda tensor, gain=1.0: orthogonal(_numbers(tensor), gain)
    vars(torch)["tensor"] = partial(_tensor, torch.tensor)
    return [everything, some]


def _tensor(make: Any, data: Any, *, device: Any = None, **options: Any) -> Tensor:
    """`torch.tensor`, which does not ask anybody how to make a tensor elsewhere."""
    target = torch.empty(0, device=device).device
    with torch.device("cpu"):
        made: Tensor = make(data, **options)
    return made.to(target)
