"""A policy for loops that know NumPy only."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sf.nets.outputs import PolicyStep
from sf.nets.seeding import Seed
from sf.policy.fitting import Fit
from sf.policy.nests import Nest, check_structure, map_leaves, without_extra_keys
from sf.policy.policy import Policy
from sf.policy.specs import batch_of_one
from sf.policy.steps import TimeStep


class NumpyPolicy:
    """Takes one NumPy time step at a time and gives back NumPy arrays and integers, all without a batch dimension."""

    def __init__(self, policy: Policy) -> None:
        """Wraps a policy; it is shared, not copied."""
        self.policy = policy
        self._time_step_fit, self._state_fit = Fit(policy.time_step_spec), Fit(policy.policy_state_spec)

    def action(self, time_step: TimeStep, policy_state: Nest = (), seed: Seed = None) -> PolicyStep:
        """Choose an action, see `Policy.action`; arrays and numbers have no batch dimension.

        A choice without a shape, as of a Discrete space, is a NumPy integer. Unlike an array it can be the key of a
        dict, as tables of environments need it.

        Raises:
            ValueError, TypeError: an input does not fit its spec.
        """
        policy = self.policy
        batch = self._to_batch(time_step, self._time_step_fit, policy.time_step_spec, "time_step")
        state = self._to_batch(policy_state, self._state_fit, policy.policy_state_spec, "policy_state")
        step: PolicyStep = map_leaves(_first_of_batch, policy.action(batch, state, seed))
        return step

    def get_initial_state(self) -> Nest:
        """The recurrent state at the beginning of an episode."""
        return map_leaves(lambda tensor: tensor.numpy(), self.policy.get_initial_state(None))

    def _to_batch(self, value: Nest, fit: Fit, spec: Nest, what: str) -> Nest:
        found = fit.flatten(value)
        if found == []:
            return value
        if found is not None:
            return fit.pack([batch_of_one(*pair) for pair in zip(fit.leaves, found, strict=True)])
        if self.policy.validate_args:
            value = without_extra_keys(value, spec)
            check_structure(value, spec, what)
        return map_leaves(batch_of_one, spec, value)


def _first_of_batch(tensor: Tensor) -> Any:
    array = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array[0] if array.ndim == 1 and array.dtype.kind == "i" else array[0, ...]
