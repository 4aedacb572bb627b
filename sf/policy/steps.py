"""The inputs of a policy, its answer when it acts, and the part that training keeps."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import torch

from sf.policy.nests import Nest


class StepType(IntEnum):
    """Where in an episode a time step lies."""

    FIRST = 0
    MID = 1
    LAST = 2


class TimeStep(NamedTuple):
    """The input of a policy from an environment; tensors with or without a batch dimension, or specs of them."""

    step_type: Any
    """int32, see `StepType`."""
    reward: Any
    """float32, of the step that led here; 0 in the first one."""
    discount: Any
    """float32: 0 where the task ended, otherwise 1, also where an episode was cut."""
    observation: Nest

    @classmethod
    def first(cls, observation: Nest, batch_size: int | None = None) -> TimeStep:
        """The time step of a `reset`; with a batch size one for each element."""
        outer = () if batch_size is None else (batch_size,)
        step_type = torch.full(outer, StepType.FIRST, dtype=torch.int32)
        reward, discount = torch.zeros(outer, dtype=torch.float32), torch.ones(outer, dtype=torch.float32)
        return cls(step_type, reward, discount, observation)

    @classmethod
    def after(cls, observation: Nest, reward: Any, terminated: Any, truncated: Any) -> TimeStep:
        """The time step of a `step`; numbers, or arrays [B] of a vectorised environment.

        The observation is the one that the step led to, also where the episode ended with it.
        """
        terminated, truncated = torch.as_tensor(terminated), torch.as_tensor(truncated)
        step_type = torch.where(terminated | truncated, int(StepType.LAST), int(StepType.MID)).to(torch.int32)
        discount = 1.0 - terminated.to(torch.float32)
        return cls(step_type, torch.as_tensor(reward, dtype=torch.float32), discount, observation)


class PolicyInfo(NamedTuple):
    """Side information of a policy that gives log-probabilities and nothing else."""

    log_probability: Nest
    """One [B] for each leaf of the action, before clipping."""


class Trajectory(NamedTuple):
    """One transition as it is collected, or the specs of it."""

    step_type: Any
    observation: Nest
    action: Nest
    policy_info: Nest
    next_step_type: Any
    reward: Any
    discount: Any
