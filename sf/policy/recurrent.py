"""The recurrent state of a policy: its beginning, and where episodes begin anew."""

from __future__ import annotations

import torch
from torch import Tensor

from sf.policy.nests import Nest, map_leaves
from sf.policy.specified import Specified
from sf.policy.steps import StepType, TimeStep


class Recurrent(Specified):
    """Gives the recurrent state at the beginning of an episode; a subclass says which one in `_get_initial_state`."""

    device = torch.device("cpu")
    """Device of everything that goes in and comes out, and of the generator that a seed is for; a subclass sets it."""

    def get_initial_state(self, batch_size: int | None = None) -> Nest:
        """The recurrent state at the beginning of an episode.

        Args:
            batch_size: number of elements of the batch; None for a single one without a batch dimension.

        Raises:
            ValueError: the batch size is below 1.
        """
        self._expect_built()
        if batch_size is not None and not (type(batch_size) is int and batch_size > 0):
            raise ValueError(f"batch_size={batch_size!r}, expected None or an integer above 0.")
        return self._get_initial_state(batch_size)

    def _get_initial_state(self, batch_size: int | None) -> Nest:
        """Zeros, unless a subclass knows better."""
        outer = () if batch_size is None else (batch_size,)
        return map_leaves(lambda spec: spec.zeros(outer, self.device), self._policy_state_spec)

    def _expect_built(self) -> None:
        if "_is_built" not in self.__dict__:
            raise RuntimeError(
                f"The constructor of {type(self).__name__} did not call super().__init__(time_step_spec, action_spec)."
            )

    def _reset_state(self, time_step: TimeStep, policy_state: Nest) -> Nest:
        step_type = time_step.step_type
        if step_type.dim() > 1:
            step_type = step_type[:, 0]  # the recurrent state is that before the first of several steps
        is_first = step_type == StepType.FIRST
        initial = self.get_initial_state(step_type.shape[0] if step_type.dim() else None)

        def choose(at_start: Tensor, now: Tensor) -> Tensor:
            return torch.where(is_first.reshape(is_first.shape + (1,) * (now.dim() - is_first.dim())), at_start, now)

        return map_leaves(choose, initial, policy_state)
