"""What a learner receives."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor
from torch.nn import functional

_WITHOUT_TIME = ("initial_memory", "streams", "bootstrap_values", "is_new")
_ON_HOST = ("streams", "policy_version", "valid", "is_new")


@dataclass
class Batch:
    """B trajectories of T steps, time-major, as the acting side recorded them, on the device that trains.

    What only decides which transitions train, or in which order, stays on the host.
    """

    observations: dict[str, Tensor]
    """[T+1, B, *shape] per leaf; the last one follows the last step."""
    initial_memory: Tensor
    """[B, S] memory of the policy before the first step; S is 0 for a policy without one."""
    streams: Tensor
    """[B] int64 on the host, the environment row of each trajectory; of two of one row the earlier one is first."""
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
    """[T, B] int64 on the host, version of the policy that chose the action."""
    valid: Tensor
    """[T, B] bool on the host, whether the action was chosen by the policy under training."""
    is_new: Tensor | None = None
    """[B] bool on the host, whether no earlier trajectory of its row goes on in it; None where each goes on."""

    def trajectories(self, chosen: Tensor) -> Batch:
        """Some of the trajectories, by their numbers [b] on the host."""
        there = chosen.to(self.rewards.device)

        def pick(name: str, value: Tensor) -> Tensor:
            numbers = chosen if name in _ON_HOST else there
            return value[numbers] if name in _WITHOUT_TIME else value[:, numbers]

        picked = {
            field.name: pick(field.name, value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return Batch(observations={name: leaf[:, there] for name, leaf in self.observations.items()}, **picked)

    @property
    def resets(self) -> Tensor:
        """[T+1, B] bool, whether an episode begins with the observation; `initial_memory` allows for the first one."""
        return functional.pad(self.terminated | self.truncated, (0, 0, 1, 0))
