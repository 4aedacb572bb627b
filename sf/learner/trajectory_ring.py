"""Trajectories that an off-policy algorithm with a memory draws again and again, each as it was stored.

The recurrent state before the first step is kept with each of them (Kapturowski et al. 2019, "Recurrent experience
replay in distributed reinforcement learning", section 3). It is that of the policy that acted, and becomes old as
actions do. So a part of each trajectory may serve for nothing but to renew it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from sf.learner.batch import Batch
from sf.learner.stored_trajectories import StoredTrajectories
from sf.nets.actor_critic import Observations
from sf.policy import ActorCritic
from sf.replay import NothingToDraw


@dataclass(frozen=True)
class DrawnTrajectories:
    """B trajectories of T steps, time-major, on the device that trains."""

    observations: dict[str, Tensor]
    """[T+1, B, *shape] per leaf."""
    actions: Tensor
    """[T, B] or [T, B, d], as they were drawn."""
    rewards: Tensor
    """[T, B]."""
    terminated: Tensor
    """[T, B] bool."""
    truncated: Tensor
    """[T, B] bool; what follows belongs to another episode."""
    valid: Tensor
    """[T, B] bool, whether the action was chosen by a policy of this learner."""
    initial_memory: Tensor
    """[B, S] recurrent state before the first step."""
    versions: Tensor
    """[M] int64 on the host, of the policies that chose the actions; of valid steps only, in no order."""

    def __len__(self) -> int:
        return self.rewards.numel()

    def outputs(self, policy: ActorCritic, burn_in: int) -> tuple[Tensor, Tensor]:
        """Parameters of the distribution [T+1-burn_in, B, n] and values [T+1-burn_in, B] under a policy.

        Args:
            policy: that goes through all observations.
            burn_in: first steps, which only bring the recurrent state up to date, without gradients.
        """
        num_trajectories, state = self.rewards.shape[1], self.initial_memory
        resets = functional.pad(self.terminated | self.truncated, (0, 0, 1, 0))
        if burn_in:
            with torch.no_grad():
                state = policy.forward(self._flat(slice(None, burn_in)), state, resets[:burn_in])[2]
        params, values, _ = policy.forward(self._flat(slice(burn_in, None)), state, resets[burn_in:])
        return params.view(-1, num_trajectories, params.shape[-1]), values.view(-1, num_trajectories)

    def _flat(self, steps: slice) -> Observations:
        return {name: leaf[steps].flatten(0, 1) for name, leaf in self.observations.items()}


BY_STEP = "actions", "rewards", "terminated", "truncated", "valid", "versions"


class TrajectoryRing:
    """The newest trajectories; the oldest ones make room. All that hold a step of the own policy are alike likely."""

    def __init__(self, size: int) -> None:
        """Takes memory with the first batch; `size` is in transitions, see `StoredTrajectories`."""
        self._stored = StoredTrajectories(size)
        self.num_added = 0
        """Transitions that came in so far."""

    def add(self, batch: Batch) -> int:
        """See `Ring`."""
        by_step = {
            "actions": batch.actions,
            "rewards": batch.rewards,
            "terminated": batch.terminated,
            "truncated": batch.truncated,
            "valid": batch.valid,
            "versions": batch.policy_version,
        }
        for _ in self._stored.put(batch, by_step, {"initial_memory": batch.initial_memory}):
            pass
        number = int(batch.valid.sum())
        self.num_added += number
        return number

    def minibatches(self, number: int, size: int, device: torch.device | None = None) -> Iterator[DrawnTrajectories]:
        """See `Ring`; of about `size` transitions, and at least one trajectory."""
        if number <= 0:
            return
        stored = self._stored
        rows = stored.columns["valid"][: stored.filled].any(1).nonzero()[:, 0]
        if not len(rows):
            raise NothingToDraw("Every transition in the buffer was chosen by another policy.")
        each = max(1, size // stored.num_steps)
        for _ in range(number):
            yield self._at(rows[torch.randint(len(rows), (each,))], device)

    def _at(self, rows: Tensor, device: torch.device | None) -> DrawnTrajectories:
        def there(column: Tensor) -> Tensor:
            return column if device is None else column.to(device, non_blocking=True)

        columns = {name: self._stored.columns[name][rows].transpose(0, 1) for name in BY_STEP}
        versions = columns.pop("versions")[columns["valid"]]
        return DrawnTrajectories(
            observations={name: there(leaf[rows].transpose(0, 1)) for name, leaf in self._stored.observations.items()},
            initial_memory=there(self._stored.columns["initial_memory"][rows]),
            versions=versions,
            **{name: there(column) for name, column in columns.items()},
        )
