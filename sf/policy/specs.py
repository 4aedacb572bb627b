"""Specs: shape, type and limits of the tensors that a policy takes and gives back.

A spec describes one element; tensors may have dimensions for the batch, and for the time after it, before its shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sf.policy.nests import Nest, find, leaves_with_paths, map_leaves, nest_of, path_text
from sf.policy.steps import TimeStep
from sf.shared.arena import Array
from sf.spaces import ActionPart, ActionSpec, LeafSpec
from sf.spaces.from_gymnasium import action_spec, observation_leaves

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without limits."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "_numpy_dtype", np.dtype(_name_of(self.dtype)))

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The same type for NumPy."""
        dtype: np.dtype[Any] = self.__dict__["_numpy_dtype"]
        return dtype

    def __str__(self) -> str:
        """For messages."""
        return f"{_name_of(self.dtype)}{list(self.shape)}"

    def zeros(self, outer_shape: Sequence[int] = (), device: torch.device | None = None) -> Tensor:
        """Zeros of this shape, with further dimensions before it."""
        return torch.zeros((*outer_shape, *self.shape), dtype=self.dtype, device=device)

    def to_json(self) -> dict[str, Any]:
        """Numbers, texts and lists only."""
        return {"shape": list(self.shape), "dtype": _name_of(self.dtype), "name": self.name}


@dataclass(frozen=True, eq=False)
class BoundedTensorSpec(TensorSpec):
    """A tensor whose elements lie from `minimum` to `maximum`, both included; infinite where there is no limit."""

    minimum: Any = None
    maximum: Any = None
    """Numbers or arrays that can be broadcast to the shape; kept as arrays of the shape."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_float = self.dtype.is_floating_point
        limits = (-np.inf, np.inf) if is_float else (torch.iinfo(self.dtype).min, torch.iinfo(self.dtype).max)
        for bound, unlimited in zip(("minimum", "maximum"), limits, strict=True):
            given = getattr(self, bound)
            try:
                array = np.asarray(unlimited if given is None else given, np.float64 if is_float else np.int64)
                array = np.broadcast_to(array, self.shape).copy()
            except (OverflowError, ValueError) as error:
                raise ValueError(f"{bound}={given!r} does not fit a spec of {self}: {error}.") from None
            array.setflags(write=False)
            object.__setattr__(self, bound, array)
        tensors = tuple(torch.tensor(bound, dtype=self.dtype) for bound in (self.minimum, self.maximum))
        object.__setattr__(self, "_limits", tensors)

    @property
    def limits(self) -> tuple[Tensor, Tensor]:
        """Minimum and maximum as tensors."""
        limits: tuple[Tensor, Tensor] = self.__dict__["_limits"]
        return limits

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundedTensorSpec):
            return NotImplemented
        return (
            (self.shape, self.dtype, self.name) == (other.shape, other.dtype, other.name)
            and np.array_equal(self.minimum, other.minimum)
            and np.array_equal(self.maximum, other.maximum)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.name))

    def to_json(self) -> dict[str, Any]:
        """Numbers, texts and lists only; infinities as text."""
        return super().to_json() | {"minimum": _bound_to_json(self.minimum), "maximum": _bound_to_json(self.maximum)}


def _bound_to_json(bound: Array) -> list[int | str]:
    """Its elements, or a single one if they are equal, as those of images are."""
    elements = bound.reshape(-1)
    if elements.size and (elements == elements[0]).all():
        elements = elements[:1]
    return [int(x) if bound.dtype.kind == "i" else str(x) for x in elements]


def spec_from_json(data: dict[str, Any]) -> TensorSpec:
    """The inverse of `to_json`."""
    shape, dtype, name = tuple(data["shape"]), getattr(torch, data["dtype"]), data["name"]
    if "minimum" not in data:
        return TensorSpec(shape, dtype, name)
    kind = float if dtype.is_floating_point else int
    bounds = []
    for elements in (data["minimum"], data["maximum"]):
        bound = np.array([kind(x) for x in elements])
        bounds.append(bound[0] if bound.size == 1 else bound.reshape(shape))
    return BoundedTensorSpec(shape, dtype, name, *bounds)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_tensors(tensors: Nest, specs: Nest, what: str) -> tuple[int, ...]:
    """Refuse tensors that do not fit their specs; both have the same structure.

    Returns:
        The dimensions before the shape of the specs, the same for all tensors; () if there are no tensors.

    Raises:
        TypeError: a leaf is no tensor or has another dtype.
        ValueError: a leaf has another shape, or a batch is empty.
    """
    outer: tuple[int, ...] | None = None
    for path, spec in leaves_with_paths(specs):
        tensor, where = find(tensors, path), path_text(what, path)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{where} is {type(tensor).__name__}, expected a torch.Tensor, {spec}.")
        if tensor.dtype != spec.dtype:
            raise TypeError(f"The dtype of {where} is {_name_of(tensor.dtype)}, which does not match its spec: {spec}.")
        num_outer = tensor.dim() - len(spec.shape)
        if num_outer < 0 or tensor.shape[num_outer:] != spec.shape:
            raise ValueError(
                f"{where} has shape {list(tensor.shape)}, expected {list(spec.shape)} with or without dimensions for "
                "batch and time before it."
            )
        found = tuple(tensor.shape[:num_outer])
        if outer is None:
            outer = found
        elif found != outer:
            raise ValueError(f"{where} has the batch dimensions {list(found)}, expected {list(outer)} as before it.")
        if 0 in found:
            raise ValueError(
                f"{where} has shape {list(tensor.shape)}: the batch is empty. Expected at least one element."
            )
    return outer or ()


def clip_to_spec(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Clamped to the limits of the spec; as it is where there are none."""
    if not isinstance(spec, BoundedTensorSpec):
        return tensor
    minimum, maximum = spec.limits
    if tensor.dtype != spec.dtype or not tensor.is_cpu:
        minimum, maximum = minimum.to(tensor), maximum.to(tensor)
    return tensor.clamp(minimum, maximum)


# ------------------------------------------------------------------------------------------------ Gymnasium's spaces


def spec_of_space(space: gymnasium.Space[Any]) -> Nest:
    """The nest of specs of a space, as an observation: bounded where the space is.

    Raises:
        EnvError: a part of the space has no spec: Text, Graph, Sequence.
    """
    return nest_of(
        {leaf.path: leaf_spec(leaf, _find_space(space, leaf.path)) for leaf in observation_leaves(space).values()}
    )


def _find_space(space: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        space = space[key]
    return space


def leaf_spec(leaf: LeafSpec, space: Any = None) -> TensorSpec:
    """Spec of a leaf; the limits of numbers are those of the space, where there is one."""
    dtype, name = getattr(torch, leaf.dtype), "/".join(map(str, leaf.path)) or None
    if leaf.categories:
        starts = np.reshape(leaf.starts, leaf.shape)
        return BoundedTensorSpec(leaf.shape, dtype, name, starts, starts + np.reshape(leaf.categories, leaf.shape) - 1)
    if isinstance(getattr(space, "n", None), (int, tuple, np.ndarray)):  # MultiBinary
        return BoundedTensorSpec(leaf.shape, dtype, name, 0, 1)
    low, high = getattr(space, "low", -np.inf), getattr(space, "high", np.inf)
    if np.isinf(low).all() and np.isinf(high).all():
        return TensorSpec(leaf.shape, dtype, name)
    return BoundedTensorSpec(leaf.shape, dtype, name, low, high)


def spec_of_action_space(space: gymnasium.Space[Any]) -> Nest:
    """The nest of specs of an action space; every bound is kept.

    Raises:
        EnvError: a part of the space is no action that a policy can choose.
    """
    return spec_of_action(action_spec(space))


def spec_of_action(action: ActionSpec) -> Nest:
    """The nest of specs of actions for the environment."""
    specs: dict[tuple[str | int, ...], TensorSpec] = {}
    for part, columns in columns_of_parts(action):
        dtype, name = getattr(torch, part.dtype), "/".join(map(str, part.path)) or None
        low = np.array([column.start if column.num_choices else column.low for column in columns])
        high = np.array(
            [column.start + column.num_choices - 1 if column.num_choices else column.high for column in columns]
        )
        if np.isinf(low).all() and np.isinf(high).all():
            specs[part.path] = TensorSpec(part.shape, dtype, name)
        else:
            bounds = low.reshape(part.shape), high.reshape(part.shape)
            specs[part.path] = BoundedTensorSpec(part.shape, dtype, name, *bounds)
    return nest_of(specs)


def columns_of_parts(action: ActionSpec) -> list[tuple[ActionPart, tuple[Any, ...]]]:
    """Every part with the columns that it is made of."""
    pairs, first = [], 0
    for part in action.parts:
        stop = first + prod(part.shape)
        pairs.append((part, action.columns[first:stop]))
        first = stop
    return pairs


def spec_of_observation(leaves: Mapping[str, LeafSpec]) -> Nest:
    """The nest of specs of observations with these leaves; limits of numbers are not known."""
    return nest_of({leaf.path: leaf_spec(leaf) for leaf in leaves.values()})


def to_tensors(value: Nest, specs: Nest) -> Nest:
    """Arrays and numbers, such as an element of a Gymnasium space, as tensors of the types of the specs.

    Floats may lose digits; any other value that the type cannot hold is refused.

    Raises:
        TypeError: a value would change.
    """
    return map_leaves(lambda spec, leaf: torch.from_numpy(_cast(leaf, spec)), specs, value)


def batch_of_one(spec: TensorSpec, leaf: Any) -> Tensor:
    """An array or number without a batch dimension, as a tensor with one; values as for `to_tensors`."""
    if isinstance(leaf, Tensor) and leaf.dtype == spec.dtype:
        return leaf.unsqueeze(0)
    return torch.from_numpy(_cast(leaf, spec)[None])


def _cast(leaf: Any, spec: TensorSpec) -> Array:
    array, wanted = np.asarray(leaf), spec.numpy_dtype
    if array.dtype == wanted:
        # torch takes neither negative strides nor what may not be written
        return array if array.flags.forc and array.flags.writeable else array.copy()
    cast = array.astype(wanted)
    if array.dtype.kind + wanted.kind != "ff" and not np.array_equal(cast, array):
        raise TypeError(
            f"The dtype of {spec.name or 'the value'} is {array.dtype}, which does not match its spec: {spec}."
        )
    return cast


def to_arrays(tensors: Nest) -> Nest:
    """The tensors as NumPy arrays, which Gymnasium's spaces take as elements."""
    return map_leaves(lambda tensor: tensor.numpy(), tensors)


def time_step_spec(observation: Nest) -> TimeStep:
    """The specs of a time step whose observation has these specs."""
    return TimeStep(
        BoundedTensorSpec((), torch.int32, "step_type", 0, 2),
        TensorSpec((), torch.float32, "reward"),
        BoundedTensorSpec((), torch.float32, "discount", 0.0, 1.0),
        observation,
    )
