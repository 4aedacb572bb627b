"""What a learner receives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional


@dataclass
class Batch:
    """B trajectories of T steps, time-major, as the acting side recorded them."""

    observations: dict[str, Tensor]
    """[T+1, B, *shape] per leaf; the last one follows the last step."""
    initial_memory: Tensor
    """[B, S] memory of the policy before the first step; S is 0 for a policy without one."""
    actions: Tensor
    """[T, B] or [T, B, D], as they were drawn."""
    behavior_log_probs: Tensor
    """[T, B] of the actions, under the policy that chose them."""
    values: Tensor
    """[T, B] value of the observation, in units of the reward, when acting."""
    rewards: Tensor
    """[T, B]."""
    terminated: Tensor
    """[T, B] bool."""
    truncated: Tensor
    """[T, B] bool."""
    bootstrap_values: Tensor
    """[B] value of the last observation."""
    final_values: Tensor
    """[T, B] value of the final observation where truncated, anything elsewhere."""
    policy_version: Tensor
    """[T, B] int64, version of the policy that chose the action."""
    valid: Tensor
    """[T, B] bool, whether the action was chosen by the policy under training."""

    @property
    def resets(self) -> Tensor:
        """[T+1, B] bool, whether an episode begins with the observation; `initial_memory` allows for the first one."""
        return functional.pad(self.terminated | self.truncated, (0, 0, 1, 0))
