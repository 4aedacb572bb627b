"""What a simulator returned in a whole trajectory: finite, and among the choices that it has promised.

Each look takes one transfer of a few flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sf.envs.finiteness import LARGEST
from sf.envs.leaves import leaf_value
from sf.errors import EnvError
from sf.spaces import ACTION_MASK, EnvInfo, LeafSpec


def expect_finite(env_id: str, values: Mapping[str, Tensor]) -> None:
    """Looks at tensors of numbers, by what they are.

    Raises:
        EnvError: something is not finite.
    """
    numbers = {what: value for what, value in values.items() if value.is_floating_point() and value.numel()}
    for what in _true({what: ~(value.abs() < LARGEST).all() for what, value in numbers.items()}):
        value = numbers[what]
        bad = value[~(value.abs() < LARGEST)][0].item()
        raise EnvError(
            f"{env_id} returned a non-finite {what}: {bad}. Rewards and observations must be finite; correct or clip "
            "them in the simulator."
        )


def expect_choices(info: EnvInfo, observations: Mapping[str, Tensor]) -> None:
    """Looks at the masks of a trajectory, [T+1, rows, ...].

    Raises:
        EnvError: one forbids everything.
    """
    if ACTION_MASK not in info.observations:
        return
    sizes = [column.num_choices for column in info.action.columns if column.num_choices]
    for what in _true({"an action_mask that forbids every choice": _forbids_all(observations[ACTION_MASK], sizes)}):
        raise EnvError(f"{info.env_id} returned {what}. Correct it in the simulator.")


class Categories:
    """Looks at categories before a network does, for which one that does not exist would be a fault of the device."""

    def __init__(self, info: EnvInfo, device: torch.device) -> None:
        """Has seen none."""
        self._info, leaves = info, info.observations
        self._limits = {key: self._limits_of(leaf, device) for key, leaf in leaves.items() if leaf.categories}
        self._outside = {key: torch.zeros((), dtype=torch.bool, device=device) for key in self._limits}

    @staticmethod
    def _limits_of(leaf: LeafSpec, device: torch.device) -> tuple[Tensor, Tensor]:
        first, count = (torch.tensor(each, device=device).view(leaf.shape) for each in (leaf.starts, leaf.categories))
        return first, first + count - 1

    def bounded(self, key: str, seen: Tensor) -> Tensor:
        """The observation of a leaf, of which nothing is outside; whether something was is remembered."""
        if key not in self._limits:
            return seen
        first, last = self._limits[key]
        seen = seen.to(first.device)
        self._outside[key] |= ((seen < first) | (seen > last)).any()
        return torch.clamp(seen, first, last)

    def expect_none_outside(self) -> None:
        """Looks at what is remembered, with one transfer.

        Raises:
            EnvError: there was a category that does not exist.
        """
        for key in _true(self._outside):
            raise EnvError(
                f"{self._info.env_id} returned an observation {key!r} outside of {self._info.observations[key]}. "
                "Correct it in the simulator."
            )


def _forbids_all(mask: Tensor, sizes: Sequence[int]) -> Tensor:
    columns = torch.split(mask.flatten(2), list(sizes), -1)
    return torch.stack([~column.bool().any(-1) for column in columns]).any()


def _true(flags: Mapping[str, Tensor]) -> list[str]:
    """The names of those that are true."""
    values = torch.stack(list(flags.values())).cpu().tolist() if flags else []
    return [name for name, is_true in zip(flags, values, strict=True) if is_true]


def as_leaf(env_id: str, observations: Any, leaf: LeafSpec, there: Tensor, what: str = "an observation") -> Tensor:
    """A leaf of what a simulator has returned, which fits `there`.

    Raises:
        EnvError: it has another shape, or a type that would lose something.
    """
    value: Tensor = leaf_value(observations, leaf) if leaf.path else observations
    if value.shape != there.shape or not torch.can_cast(value.dtype, there.dtype):
        raise EnvError(
            f"{env_id} returned {what} {leaf.name!r} {str(value.dtype).removeprefix('torch.')}"
            f"{list(value.shape)}, expected {str(there.dtype).removeprefix('torch.')}{list(there.shape)}."
        )
    return value
