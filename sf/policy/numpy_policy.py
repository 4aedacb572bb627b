"""A policy for loops that know NumPy only."""

from __future__ import annotations

from typing import Any

import torch

from sf.policy.nests import Nest, check_structure, map_leaves, without_extra_keys
from sf.policy.policy import Policy, Seed
from sf.policy.specs import to_tensors
from sf.policy.steps import PolicyStep, TimeStep


class NumpyPolicy:
    """Takes one NumPy time step at a time and gives back NumPy arrays; the batch of one is added and taken away."""

    def __init__(self, policy: Policy) -> None:
        """Wraps a policy; it is shared, not copied."""
        self.policy = policy

    @torch.inference_mode()
    def action(self, time_step: TimeStep, policy_state: Nest = (), seed: Seed = None) -> PolicyStep:
        """Choose an action, see `Policy.action`; arrays and numbers have no batch dimension.

        Raises:
            ValueError, TypeError: what goes in does not fit its spec.
        """
        batch = self._to_batch(time_step, self.policy.time_step_spec, "time_step")
        state = self._to_batch(policy_state, self.policy.policy_state_spec, "policy_state")
        step: PolicyStep = map_leaves(_first_of_batch, self.policy.action(batch, state, seed))
        return step

    def get_initial_state(self) -> Nest:
        """The memory at the beginning of an episode."""
        return map_leaves(lambda tensor: tensor.numpy(), self.policy.get_initial_state(None))

    def _to_batch(self, value: Nest, spec: Nest, what: str) -> Nest:
        if self.policy.validate_args:
            value = without_extra_keys(value, spec)
            check_structure(value, spec, what)
        return map_leaves(lambda tensor: tensor.unsqueeze(0), to_tensors(value, spec))


def _first_of_batch(tensor: Any) -> Any:
    return tensor.numpy()[0, ...]
