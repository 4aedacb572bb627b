"""The log-probability of an action as side information."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributions import Distribution

from sf.policy.nests import Nest, map_leaves
from sf.policy.specs import BoundedTensorSpec
from sf.policy.steps import PolicyInfo

LOG_PROBABILITY = "log_probability"


def log_probability_of(distribution: Distribution, action: Tensor, num_outer: int) -> Tensor:
    """One number for each element of the batch: the sum over the components of the leaf."""
    try:
        log_probs: Tensor = distribution.log_prob(action)
    except (NotImplementedError, AttributeError) as error:
        raise TypeError(
            f"emit_log_probability=True, but {type(distribution).__name__} has no density: {error!r}."
        ) from None
    total = log_probs.flatten(num_outer).sum(-1) if log_probs.dim() > num_outer else log_probs
    return total.to(torch.float32)


def no_log_probability(step_type: Tensor, device: torch.device | None) -> Tensor:
    """One 0 for each element of a batch, where nothing was drawn that a log-probability could belong to."""
    return torch.zeros(step_type.shape, dtype=torch.float32, device=device)


def with_log_probability_spec(info_spec: Nest, action_spec: Nest) -> Nest:
    """Specs of side information with one of a log-probability added for each leaf of the action."""
    spec = map_leaves(lambda leaf: BoundedTensorSpec((), torch.float32, leaf.name, float("-inf"), 0.0), action_spec)
    return with_log_probability(info_spec, spec)


def with_log_probability(info: Nest, log_probability: Nest) -> Nest:
    """Side information with a log-probability, or its spec, added."""
    if info == ():
        return PolicyInfo(log_probability)
    if isinstance(info, Mapping):
        return {**info, LOG_PROBABILITY: log_probability}
    if hasattr(info, "_replace") and LOG_PROBABILITY in info._fields:
        return info._replace(**{LOG_PROBABILITY: log_probability})
    raise ValueError(
        f"The side information is {type(info).__name__}, which has no room for a log-probability. Expected (), a dict, "
        f"or a named tuple with the field {LOG_PROBABILITY}."
    )
