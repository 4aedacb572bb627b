"""A baseline that looks at nothing but the limits of its actions and the mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.distributions import Distribution, Independent

from sf.nets.categorical import MASKED_LOGIT
from sf.nets.outputs import PolicyStep
from sf.policy.leaf_distributions import Choices, SpreadOut, UniformInteger
from sf.policy.nests import Nest, map_leaves
from sf.policy.policy import Policy
from sf.policy.specs import BoundedTensorSpec, TensorSpec
from sf.policy.steps import TimeStep


class RandomPolicy(Policy):
    """Draws actions from their specs: uniformly between limits, and never one that the mask forbids.

    Where a float has one limit, the distance to it is exponential with mean 1. Where it has none, the float is standard
    normal, as Gymnasium samples a Box. Side information is drawn from its specs in the same way.
    """

    def __init__(self, time_step_spec: TimeStep, action_spec: Nest, **options: Any) -> None:
        """Draws actions.

        Args:
            time_step_spec: a `TimeStep` of specs.
            action_spec: nest of specs.
            options: emit_log_probability and so on, see `Policy`.
        """
        super().__init__(time_step_spec, action_spec, **options)
        self._drawn_info_spec: Nest = options.get("info_spec", ())
        """Without the log-probability, which follows from the action."""

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        outer = tuple(time_step.step_type.shape)
        kind = _unmasked if self.observation_and_action_constraint_splitter is None else _choices
        action = map_leaves(lambda spec: kind(spec, outer), self.action_spec)
        info = map_leaves(lambda spec: _unmasked(spec, outer).sample(), self._drawn_info_spec)
        return PolicyStep(action, policy_state, info)


def _unmasked(spec: TensorSpec, outer: tuple[int, ...]) -> Distribution:
    if not isinstance(spec, BoundedTensorSpec):
        spec = BoundedTensorSpec(spec.shape, spec.dtype, spec.name)
    low, high = (limit.expand((*outer, *spec.shape)) for limit in spec.limits)
    leaf = SpreadOut(low, high) if spec.dtype.is_floating_point else UniformInteger(low, high)
    return Independent(leaf, len(spec.shape), validate_args=False) if spec.shape else leaf


def _choices(spec: BoundedTensorSpec, outer: tuple[int, ...]) -> Distribution:
    """One choice, or a vector of them, all alike; the mask makes the difference."""
    low, _ = spec.limits
    counts = np.ravel(spec.maximum - spec.minimum + 1).astype(int).tolist()
    logits = torch.full((len(counts), max(counts)), MASKED_LOGIT, dtype=torch.float32)
    for row, count in zip(logits, counts, strict=True):
        row[:count] = 0.0
    logits = logits.expand(*outer, *logits.shape)
    if not spec.shape:
        return Choices(logits[..., 0, :], low)
    return Independent(Choices(logits, low), 1, validate_args=False)
