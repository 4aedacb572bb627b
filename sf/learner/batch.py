"""The batch that a learner receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from sf.learner.column_names import unknown
from sf.shared.slot_fields import LAST_OBSERVATIONS, OBSERVATIONS, below


@dataclass(frozen=True)
class Batch:
    """B trajectories of T steps, time-major, as the acting side recorded them, on the device that trains.

    Its columns have the names of the stored fields, see `sf.shared.slot_fields`; `batch["name"]` is one of them. The
    properties below are the columns that sf itself reads. Columns that only decide which transitions train, or in
    which order, stay on the host.
    """

    by_step: Mapping[str, Tensor]
    """[T, B, ...] or [T+1, B, ...] per field."""
    by_trajectory: Mapping[str, Tensor]
    """[B, ...] per field."""

    def __getitem__(self, name: str) -> Tensor:
        """The column of a stored field."""
        if name in self.by_step:
            return self.by_step[name]
        if name in self.by_trajectory:
            return self.by_trajectory[name]
        raise KeyError(unknown(name, "column of the batch", [*self.by_step, *self.by_trajectory]))

    @property
    def observations(self) -> dict[str, Tensor]:
        """[T+1, B, *shape] per leaf; the last one follows the last step."""
        return below(OBSERVATIONS, self.by_step)

    @property
    def last_observations(self) -> dict[str, Tensor]:
        """[T, B, *shape] per leaf after steps that a time limit cut, see `last_observation_fields`; or nothing."""
        return below(LAST_OBSERVATIONS, self.by_step)

    @property
    def initial_memory(self) -> Tensor:
        """[B, S] recurrent state before the first step; S is 0 for a policy without one."""
        return self.by_trajectory["initial_memory"]

    @property
    def streams(self) -> Tensor:
        """[B] int64 on the host, the environment row of each trajectory; of two of one row the earlier one is first."""
        return self.by_trajectory["streams"]

    @property
    def is_new(self) -> Tensor:
        """[B] bool on the host, whether no earlier trajectory of its row goes on in it."""
        return self.by_trajectory["is_new"]

    @property
    def actions(self) -> Tensor:
        """[T, B] or [T, B, D], as they were drawn."""
        return self.by_step["actions"]

    @property
    def behavior_log_probs(self) -> Tensor:
        """[T, B] of the actions, under the policy that chose them."""
        return self.by_step["log_probs"]

    @property
    def values(self) -> Tensor:
        """[T, B] value of the observation, in units of the reward, when acting."""
        return self.by_step["values"][:-1]

    @property
    def bootstrap_values(self) -> Tensor:
        """[B] value of the last observation."""
        return self.by_step["values"][-1]

    @property
    def final_values(self) -> Tensor:
        """[T, B] value of the final observation where truncated, anything elsewhere."""
        return self.by_step["final_values"]

    @property
    def rewards(self) -> Tensor:
        """[T, B]."""
        return self.by_step["rewards"]

    @property
    def terminated(self) -> Tensor:
        """[T, B] bool."""
        return self.by_step["terminated"]

    @property
    def truncated(self) -> Tensor:
        """[T, B] bool."""
        return self.by_step["truncated"]

    @property
    def policy_version(self) -> Tensor:
        """[T, B] int64 on the host, version of the policy that chose the action."""
        return self.by_step["policy_version"]

    @property
    def valid(self) -> Tensor:
        """[T, B] bool on the host, whether the action was chosen by the policy under training."""
        return self.by_step["valid"]

    @property
    def resets(self) -> Tensor:
        """[T+1, B] bool, whether an episode begins with the observation; `initial_memory` allows for the first one."""
        return functional.pad(self.terminated | self.truncated, (0, 0, 1, 0))

    def trajectories(self, chosen: Tensor) -> Batch:
        """Some of the trajectories, by their numbers [b] on the host."""
        there = chosen.to(self.rewards.device)

        def beside(column: Tensor) -> Tensor:
            return chosen if column.device == chosen.device else there

        return Batch(
            {name: column[:, beside(column)] for name, column in self.by_step.items()},
            {name: column[beside(column)] for name, column in self.by_trajectory.items()},
        )

    def with_columns(self, **columns: Tensor) -> Batch:
        """The same batch with other tensors in the place of some columns by step."""
        assert columns.keys() <= self.by_step.keys(), f"{sorted(columns.keys() - self.by_step.keys())} are no columns"
        return Batch({**self.by_step, **columns}, self.by_trajectory)
