"""The state that an algorithm keeps beside the policy: how it is found, and what becomes of it at a resume.

    algorithm.state_dict() -> named tensors -> checkpoint, other learners -> algorithm.load_state_dict(...)

Modules, parameters and optimizers in the attributes of an algorithm are found by themselves, also in a list, tuple or
dict there. Names are those of the attribute and of the tensor within it, such as ``target.policy_head.weight``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from sf.errors import CheckpointError
from sf.learner.peers import Peers
from sf.nets.flat import named_variables
from sf.storage.differences import tensor_differences

Part = nn.Module | nn.Parameter | Optimizer
LIKE_THE_PARAMETER = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg"})
"""State of optimizers of torch that has the shape of its parameter."""


def parts_of(owner: object) -> dict[str, Part]:
    """Modules, parameters and optimizers in the attributes of an object, by name; modules once they have weights."""
    found: dict[str, Part] = {}
    for name, value in vars(owner).items():
        for key, part in entries(name, value):
            if isinstance(part, (Optimizer, nn.Parameter, nn.Module)) and not _is_lazy(part):
                found[key] = part
    return found


def _is_lazy(part: Part) -> bool:
    """Whether a module or a parameter has no weights before a module is called for the first time."""
    if isinstance(part, nn.Module):
        return any(is_lazy(variable) for _, variable in named_variables(part))
    return isinstance(part, nn.Parameter) and is_lazy(part)


def entries(name: str, value: object) -> Iterator[tuple[str, object]]:
    """What an attribute holds, by name: itself, or the parts of a list, tuple or dict."""
    if isinstance(value, Mapping):
        yield from ((f"{name}.{key}", part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}.{index}", part) for index, part in enumerate(value))
    else:
        yield name, value


def state_of_parts(owner: object) -> dict[str, Tensor]:
    """Named tensors of the modules and optimizers of an object; not copied."""
    return {f"{name}.{key}": tensor for name, part in parts_of(owner).items() for key, tensor in _state(part).items()}


def load_parts(owner: object, state: Mapping[str, Tensor]) -> None:
    """Goes on from the tensors of `state_of_parts`.

    Raises:
        CheckpointError: the modules or optimizers are not those of the state; then nothing is changed.
    """
    parts = parts_of(owner)
    states, known = dict[str, dict[str, Tensor]](), set[str]()
    for name in sorted(parts, key=len, reverse=True):  # of names that begin alike the longest one
        states[name] = _below(name, {key: state[key] for key in state.keys() - known})
        known |= {f"{name}.{key}" for key in states[name]}
    differences = [f"{name}: not expected" for name in sorted(state.keys() - known)]
    for name, part in parts.items():
        check = _misfits if isinstance(part, Optimizer) else tensor_differences
        own: Any = part if isinstance(part, Optimizer) else _state(part)
        differences += [f"{name}.{line}" for line in check(own, states[name])]
    if differences:
        raise CheckpointError("\n  ".join(differences))
    for name, part in parts.items():
        if isinstance(part, Optimizer):
            _load_optimizer(part, states[name])
            continue
        with torch.no_grad():
            for key, tensor in _state(part).items():
                tensor.copy_(states[name][key])


@contextmanager
def parts_unchanged(owner: object) -> Iterator[None]:
    """Puts modules, parameters and optimizers back to where they are now; those that are made meanwhile stay."""
    parts = parts_of(owner).values()
    alone = [(part, part.detach().clone()) for part in parts if isinstance(part, nn.Parameter)]
    before = [(part, copy.deepcopy(part.state_dict())) for part in parts if not isinstance(part, nn.Parameter)]
    yield
    for parameter, value in alone:
        parameter.detach().copy_(value)
    for part, state in before:
        part.load_state_dict(state)


class Stateful(Protocol):
    """An algorithm, as far as its state goes."""

    def state_dict(self) -> dict[str, Tensor]:
        """See `Algorithm`."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Algorithm`."""


def take_state_from_first(algorithm: Stateful, peers: Peers, is_first: bool) -> None:
    """Gives the state of the first learner's algorithm to all learners; the names in it may differ before."""
    packed = pack(algorithm.state_dict()) if is_first else torch.empty(0, dtype=torch.uint8)
    (size,) = peers.sum(len(packed))
    own = packed if is_first else torch.empty(int(size), dtype=torch.uint8)
    taken = peers.take_from_first({"state": own})["state"]
    if not is_first:
        algorithm.load_state_dict(unpack(taken))


def pack(state: Mapping[str, Tensor]) -> Tensor:
    """[bytes] uint8, all of the tensors with their names; the other direction is `unpack`."""
    separate = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}
    return torch.frombuffer(bytearray(safetensors.torch.save(separate)), dtype=torch.uint8)


def unpack(packed: Tensor) -> dict[str, Tensor]:
    """The tensors of `pack`."""
    return safetensors.torch.load(packed.numpy().tobytes())


def _below(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}."): tensor for key, tensor in state.items() if key.startswith(f"{name}.")}


def _state(part: Part) -> dict[str, Tensor]:
    if isinstance(part, Optimizer):
        return _state_of_optimizer(part)
    if isinstance(part, nn.Parameter):
        return {"value": part.detach()}
    return {name: variable.detach() for name, variable in named_variables(part)}


def _state_of_optimizer(optimizer: Optimizer) -> dict[str, Tensor]:
    """State of each parameter by its number, and the numbers of each group of parameters, such as its learning rate.

    Raises:
        CheckpointError: some of it is neither a tensor nor a number.
    """
    saved = optimizer.state_dict()
    state = {f"state.{index}.{key}": value for index, values in saved["state"].items() for key, value in values.items()}
    if other := [name for name, value in state.items() if not isinstance(value, (Tensor, int, float, type(None)))]:
        raise CheckpointError(
            f"{type(optimizer).__name__} keeps {', '.join(other)}, which are no tensors. Give the algorithm a "
            "state_dict and a load_state_dict of its own."
        )
    groups = {
        f"group.{i}.{key}": torch.as_tensor(value, dtype=torch.float64)
        for i, group in enumerate(saved["param_groups"])
        for key, value in group.items()
        if _is_number(value)
    }
    return groups | {name: torch.as_tensor(value) for name, value in state.items() if value is not None}


def _number_like(own: object, saved: Tensor) -> Tensor | float | int:
    """The saved number in the form of the own one; a whole number may have become a fraction."""
    if isinstance(own, Tensor):
        return saved.to(own)
    number: float = saved.item()
    return int(number) if isinstance(own, int) and number.is_integer() else number


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Tensor)) and not isinstance(value, bool)


def _misfits(optimizer: Optimizer, state: Mapping[str, Tensor]) -> list[str]:
    """A line for each tensor that belongs to no parameter; an optimizer has no state before its first step."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    own = _state_of_optimizer(optimizer)
    groups = {name for name in own if name.startswith("group.")}
    is_of_torch = type(optimizer).__module__.startswith("torch.")
    lines = [f"{name}: missing" for name in sorted(groups - state.keys())]
    for name, tensor in state.items():
        if name in groups:
            continue
        kind, _, rest = name.partition(".")
        index, _, key = rest.partition(".")
        if kind != "state" or int(index) >= len(parameters):
            lines.append(f"{name}: not expected, found {list(tensor.shape)}")
            continue
        shape = own[name].shape if name in own else parameters[int(index)].shape
        if tensor.shape != shape and (name in own or (is_of_torch and key in LIKE_THE_PARAMETER)):
            lines.append(f"{name}: expected {list(shape)}, found {list(tensor.shape)}")
    return lines


def _load_optimizer(optimizer: Optimizer, state: Mapping[str, Tensor]) -> None:
    saved = optimizer.state_dict()
    values: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        kind, index, key = name.split(".", 2)
        if kind == "group":
            group = saved["param_groups"][int(index)]
            group[key] = _number_like(group[key], tensor)
        else:
            values.setdefault(int(index), {})[key] = tensor.clone()
    optimizer.load_state_dict(saved | {"state": values})
