"""Masks of legal actions: where an observation carries one, and how a policy takes it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from sf.policy.nests import Nest, leaves
from sf.policy.specs import BoundedTensorSpec
from sf.spaces import ACTION_MASK

Splitter = Callable[[Nest], tuple[Nest, Tensor | None]]
"""From an observation to the part for the network and the mask of legal actions, bool [B, choices], or None."""


def split_action_mask(observation: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
    """The splitter of observations that carry their mask under the key ``action_mask``."""
    others = {key: part for key, part in observation.items() if key != ACTION_MASK}
    return others, observation[ACTION_MASK] != 0


def choose_splitter(
    wanted: Splitter | None, observation_spec: Nest, action_spec: Nest, network_reads_masks: bool
) -> Splitter | None:
    """The splitter of a policy: what the user wants, that of the key ``action_mask`` if there is one, or None.

    Raises:
        NotImplementedError: a mask for actions that are not one leaf of choices, or a splitter of the user where the
            network reads the mask.
    """
    if wanted not in (None, split_action_mask) and network_reads_masks:
        raise NotImplementedError(
            f"The network of this policy reads the mask of the observation {ACTION_MASK!r} itself, as in training; a "
            "splitter of your own would have no effect."
        )
    has_mask = isinstance(observation_spec, Mapping) and ACTION_MASK in observation_spec
    if wanted is None and not has_mask:
        return None
    if _can_be_masked(action_spec):
        return wanted or split_action_mask
    if wanted is None and network_reads_masks:
        return None
    shown = ", ".join(str(spec) for spec in leaves(action_spec))
    raise NotImplementedError(
        f"Masks are for one leaf of bounded integers (Discrete or MultiDiscrete), but the action has {shown}."
    )


def _can_be_masked(action_spec: Nest) -> bool:
    """Whether an action is one choice or a vector of choices."""
    specs = list(leaves(action_spec))
    return (
        len(specs) == 1
        and isinstance(specs[0], BoundedTensorSpec)
        and not specs[0].dtype.is_floating_point
        and len(specs[0].shape) <= 1
    )
