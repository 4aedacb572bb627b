"""The specs of what goes into a policy and comes out of it, and the checks against them."""

from __future__ import annotations

from torch import nn
from torch.distributions import Distribution

from sf.nets.outputs import PolicyStep
from sf.policy.fitting import Fit
from sf.policy.nests import Nest, check_structure, has_keys, leaves, without_extra_keys
from sf.policy.specs import TensorSpec, check_tensors
from sf.policy.steps import TimeStep, Trajectory


class Specified(nn.Module):
    """Holds the specs of a policy, and raises where something does not fit them."""

    def __init__(
        self, time_step_spec: TimeStep, action_spec: Nest, policy_state_spec: Nest, info_spec: Nest, name: str
    ) -> None:
        """Takes the specs, see `Policy`.

        Args:
            time_step_spec, action_spec, policy_state_spec: as `Policy` is given them.
            info_spec: of the side information, with the log-probability where it is emitted.
            name: for messages.

        Raises:
            ValueError: `time_step_spec` is no TimeStep of specs.
        """
        super().__init__()
        if not isinstance(time_step_spec, TimeStep):
            raise ValueError(f"time_step_spec is {type(time_step_spec).__name__}, expected a TimeStep of specs.")
        if wrong := [type(leaf).__name__ for leaf in leaves(time_step_spec) if not isinstance(leaf, TensorSpec)]:
            raise ValueError(f"time_step_spec holds {', '.join(wrong)}, expected specs only.")
        self.name = name
        self._time_step_spec, self._action_spec = time_step_spec, action_spec
        self._policy_state_spec, self._info_spec = policy_state_spec, info_spec
        self._has_state = any(True for _ in leaves(policy_state_spec))
        self._has_keys = has_keys((time_step_spec, policy_state_spec))
        self._time_step_fit, self._state_fit = Fit(time_step_spec), Fit(policy_state_spec)
        self._action_fit, self._step_fit = Fit(action_spec), Fit(self.policy_step_spec)
        self.batch_size: int | None = None
        """The only size of a batch that is accepted, if it was saved with one."""

    @property
    def time_step_spec(self) -> TimeStep:
        """Specs of the input of `action`."""
        return self._time_step_spec

    @property
    def action_spec(self) -> Nest:
        """Specs of an action."""
        return self._action_spec

    @property
    def policy_state_spec(self) -> Nest:
        """Specs of the recurrent state."""
        return self._policy_state_spec

    @property
    def info_spec(self) -> Nest:
        """Specs of the side information, the log-probability included where it is emitted."""
        return self._info_spec

    @property
    def policy_step_spec(self) -> PolicyStep:
        """Specs of the result of `action`."""
        return PolicyStep(self._action_spec, self._policy_state_spec, self._info_spec)

    @property
    def trajectory_spec(self) -> Trajectory:
        """Specs of one transition as it is collected."""
        step_type, reward, discount, observation = self._time_step_spec
        return Trajectory(step_type, observation, self._action_spec, self._info_spec, step_type, reward, discount)

    @property
    def collect_data_spec(self) -> Trajectory:
        """The same as `trajectory_spec`."""
        return self.trajectory_spec

    def _drop_extra_keys(self, time_step: TimeStep, policy_state: Nest) -> tuple[TimeStep, Nest]:
        if self._has_keys and self._time_step_fit.flatten(time_step) is None:
            time_step = without_extra_keys(time_step, self._time_step_spec)
        if self._has_keys and self._state_fit.flatten(policy_state) is None:
            policy_state = without_extra_keys(policy_state, self._policy_state_spec)
        return time_step, policy_state

    def _check_input(self, time_step: TimeStep, policy_state: Nest) -> tuple[int, ...]:
        """Returns the batch dimensions."""
        outer = self._time_step_fit.outer_shape(time_step)
        of_state = self._state_fit.outer_shape(policy_state)
        if outer is None or of_state is None:
            outer, of_state = self._look_closely(time_step, policy_state)
        if self.batch_size is not None and outer[:1] != (self.batch_size,):
            raise ValueError(f"{self.name} was saved for batches of {self.batch_size}, found {list(outer)}.")
        if self._has_state and of_state != outer[:1]:
            raise ValueError(
                f"policy_state has the batch dimensions {list(of_state)}, but the time step has {list(outer)}."
            )
        return outer

    def _look_closely(self, time_step: TimeStep, policy_state: Nest) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The batch dimensions of both; raises where something does not fit."""
        if not isinstance(time_step, TimeStep):
            raise ValueError(f"time_step is {type(time_step).__name__}, expected a TimeStep.")
        for field, part, spec in zip(TimeStep._fields, time_step, self._time_step_spec, strict=True):
            check_structure(part, spec, field)
        if self._has_state and policy_state == ():
            raise ValueError(f"policy_state is missing: {self.name} is recurrent. Begin with get_initial_state.")
        check_structure(policy_state, self._policy_state_spec, "policy_state")
        outer = check_tensors(time_step, self._time_step_spec, "time_step")
        return outer, check_tensors(policy_state, self._policy_state_spec, "policy_state")

    def _check_action_structure(self, step: PolicyStep) -> None:
        if self._action_fit.flatten(step.action) is None:
            check_structure(step.action, self._action_spec, "action")

    def _check_step_structure(self, step: PolicyStep) -> None:
        if self._step_fit.flatten(step) is None:
            for field, part, spec in zip(PolicyStep._fields, step, self.policy_step_spec, strict=True):
                check_structure(part, spec, field)

    def _check_action_tensors(self, step: PolicyStep, outer: tuple[int, ...]) -> None:
        found = self._action_fit.outer_shape(step.action)
        if found is None:
            found = check_tensors(step.action, self._action_spec, "action")
        if found != outer and self._action_fit.leaves:
            raise ValueError(f"action has the batch dimensions {list(found)}, but the time step has {list(outer)}.")

    def _check_distributions(self, step: PolicyStep, outer: tuple[int, ...]) -> None:
        for leaf in leaves(step.action):
            if not isinstance(leaf, Distribution):
                raise TypeError(
                    f"{self.name} has a distribution that is {type(leaf).__name__}, expected a "
                    "torch.distributions.Distribution in each leaf."
                )
            shape = tuple(leaf.batch_shape + leaf.event_shape)
            if shape[: len(outer)] != outer:
                raise ValueError(
                    f"{self.name} has a distribution of shape {list(shape)}, but the time step has the batch "
                    f"dimensions {list(outer)}."
                )
