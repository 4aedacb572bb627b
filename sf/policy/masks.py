"""Masks of legal actions: where an observation carries one, and how a policy takes it out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent
from torch.nn import functional

from sf.nets.categorical import MASKED_LOGIT
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
    """The splitter of a policy: that of the user, that of the key ``action_mask`` if there is one, or None.

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


def masked(distribution: Any, mask: Tensor, spec: BoundedTensorSpec, name: str) -> Distribution:
    """The distribution without the choices that the mask forbids: their logits are as low as they can be.

    Args:
        distribution: a `Categorical` with logits [..., n], or an `Independent` of one with logits [..., k, n] for a
            vector of k choices.
        mask: bool [..., n], or [..., sum of the numbers of choices] for a vector.
        spec: of the action.
        name: of the policy, for messages.

    Raises:
        ValueError: the mask has another number of choices than the action.
        TypeError: the distribution has no logits that could be masked.
    """
    is_vector = isinstance(distribution, Independent)
    choices = distribution.base_dist if isinstance(distribution, Independent) else distribution
    if not isinstance(choices, Categorical) or is_vector is not bool(spec.shape):
        raise TypeError(
            f"{name} has observations with a mask, and _distribution returned {distribution!r}, expected a "
            "Categorical, or an Independent of one for a vector of choices. If it masks by itself, set "
            "masks_itself = True."
        )
    counts = np.ravel(spec.maximum - spec.minimum + 1).astype(int).tolist()
    if mask.shape[-1] != sum(counts):
        raise ValueError(f"{name} has a mask of {mask.shape[-1]} choices, but the action has {sum(counts)}.")
    if choices.logits.shape[-1] != max(counts):
        raise ValueError(f"{name} has {choices.logits.shape[-1]} logits of a choice, but the action has {max(counts)}.")
    legal = mask.to(torch.bool)
    if is_vector:
        widest = choices.logits.shape[-1]
        rows = [functional.pad(part, (0, widest - part.shape[-1])) for part in torch.split(legal, counts, -1)]
        legal = torch.stack(rows, -2)
    logits = choices.logits.masked_fill(~legal, MASKED_LOGIT)
    own = copy.copy(choices)  # its other attributes, such as the first choice, stay
    own.logits = own._param = logits - logits.logsumexp(-1, keepdim=True)
    own.__dict__.pop("probs", None)
    if not isinstance(distribution, Independent):
        return own
    return Independent(own, distribution.reinterpreted_batch_ndims, validate_args=False)


def _can_be_masked(action_spec: Nest) -> bool:
    """Whether an action is one choice or a vector of choices."""
    specs = list(leaves(action_spec))
    return (
        len(specs) == 1
        and isinstance(specs[0], BoundedTensorSpec)
        and not specs[0].dtype.is_floating_point
        and len(specs[0].shape) <= 1
    )
