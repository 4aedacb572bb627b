"""Moving the variables of a policy towards those of another one: a target that follows slowly, or a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sf.policy.policy import Policy


@torch.no_grad()
def blend(policy: Policy, source: Policy, tau: float, tau_non_trainable: float, by_name: bool) -> None:
    """The work of `Policy.update`, which describes it.

    Raises:
        ValueError: a tau outside of 0 to 1, or variables that differ in number or shape; nothing is changed then.
    """
    taus = {"tau": tau, "tau_non_trainable": tau_non_trainable}
    for name, value in taus.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name}={value}, expected a number from 0 to 1.")
    pairs = [
        (*pair, value)
        for is_trainable, value in zip((True, False), taus.values(), strict=True)
        for pair in _pairs(policy, source, is_trainable, by_name)
    ]
    for own, other, value in pairs:
        if value == 1.0 or (value > 0.0 and not own.is_floating_point()):
            own.copy_(other)
        elif value > 0.0:
            own.lerp_(other.to(own.dtype), value)


def _pairs(policy: Policy, source: Policy, is_trainable: bool, by_name: bool) -> list[tuple[Tensor, Tensor]]:
    """The variables of two policies side by side."""

    def of(one: Policy) -> list[tuple[str, Tensor]]:
        found = [(name, v) for name, v in one.variables().items() if v.requires_grad == is_trainable]
        return sorted(found, key=lambda item: item[0]) if by_name else found

    own, others = of(policy), of(source)
    kind = "trainable" if is_trainable else "non-trainable"
    if len(own) != len(others):
        raise ValueError(f"{policy.name} has {len(own)} {kind} variables, but {source.name} has {len(others)}.")
    for (name, variable), (other_name, other) in zip(own, others, strict=True):
        if variable.shape != other.shape:
            raise ValueError(
                f"The {kind} variable {name} has shape {list(variable.shape)}, but its counterpart {other_name} has "
                f"{list(other.shape)}."
            )
    return [(variable, other) for (_, variable), (_, other) in zip(own, others, strict=True)]
