"""What a learner receives."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor
from torch.nn import functional

_WITHOUT_TIME = ("initial_memory", "streams", "bootstrap_values")


@dataclass
class Batch:
    """B trajectories of T steps, time-major, as the acting side recorded them."""

    observations: dict[str, Tensor]
    """[T+1, B, *shape] per leaf; the last one follows the last step."""
    initial_memory: Tensor
    """[B, S] memory of the policy before the first step; S is 0 for a policy without one."""
    streams: Tensor
    """[B] int64, the environment row that each trajectory comes from; of two of one row the earlier one is first."""
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

    def trajectories(self, chosen: Tensor) -> Batch:
        """Some of the trajectories, by index [b] or mask [B]."""
        picked = {
            field.name: value[chosen] if field.name in _WITHOUT_TIME else value[:, chosen]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return Batch(observations={name: leaf[:, chosen] for name, leaf in self.observations.items()}, **picked)

    @property
    def resets(self) -> Tensor:
        """[T+1, B] bool, whether an episode begins with the observation; `initial_memory` allows for the first one."""
        return functional.pad(self.terminated | self.truncated, (0, 0, 1, 0))
