"""What a learner receives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Batch:
    """B trajectories of T steps, time-major, as the acting side recorded them."""

    observations: dict[str, Tensor]
    """[T+1, B, *shape] per leaf; the last one follows the last step."""
    actions: Tensor
    """[T, B] int64 or [T, B, d], unclipped."""
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
