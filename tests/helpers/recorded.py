"""Slots filled with known numbers, as rollout and inference workers would: the input of the slow PPO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sf.shared.arena import Array
from sf.shared.slot_fields import NO_POLICY
from sf.shared.slots import Slots, SlotState
from sf.spaces import ACTION_MASK, EnvInfo


@dataclass
class Trajectory:
    """One row of one slot: T steps of one environment. The names are those of the arrays in the slots."""

    observations: dict[str, Array]
    """[T+1, *shape] per leaf."""
    initial_memory: Array
    """[S]."""
    actions: Array
    log_probs: Array
    """[T] when acting."""
    values: Array
    """[T+1] when acting, in units of the reward."""
    final_values: Array
    """[T], nan where no episode was cut."""
    rewards: Array
    terminated: Array
    truncated: Array
    policy_id: Array
    policy_version: Array
    stream: int
    """Which environment row it comes from."""

    @classmethod
    def read(cls, slots: Slots, slot: int, row: int) -> Trajectory:
        """A copy of what is there."""
        arrays = {field.name: getattr(slots, field.name)[slot, :, row].copy() for field in fields(cls)[2:-1]}
        observations = {key: leaf[slot, :, row].copy() for key, leaf in slots.observations.items()}
        stream = slots.topology.group_of_slot(slot) * slots.topology.rows + row
        return cls(observations, slots.initial_memory[slot, row].copy(), stream=stream, **arrays)

    def write(self, slots: Slots, slot: int, row: int) -> None:
        """To its place in shared memory."""
        for key, leaf in self.observations.items():
            slots.observations[key][slot, :, row] = leaf
        slots.initial_memory[slot, row] = self.initial_memory
        for field in fields(self)[2:-1]:
            getattr(slots, field.name)[slot, :, row] = getattr(self, field.name)


@dataclass
class Recording:
    """Fills the free slots, each row with other random numbers."""

    slots: Slots
    info: EnvInfo
    random: np.random.Generator
    num_policies: int = 1
    fillers: float = 0.0
    """Share of steps that are no transitions, such as those between two episodes."""
    oldest: int = 2
    """Versions that the policy of an action may be behind."""
    noise: float = 0.2
    """Deviation of the log-probability of an action from that under the newest policy."""

    def fill(
        self,
        version: int,
        say: Callable[[Trajectory], tuple[Array, Array]],
        change: Callable[[list[Trajectory]], None] = lambda trajectories: None,
    ) -> list[Trajectory]:
        """Makes every free slot full; the new trajectories in the order in which they train.

        Args:
            version: of the newest policy.
            say: log-probabilities [T] and values [T+1] of a trajectory under that policy, near which it has acted.
            change: what is special about these trajectories.
        """
        topology, filled = self.slots.topology, []
        free = [slot for slot in range(topology.num_slots) if self.slots.state(slot) is SlotState.FREE]
        for slot in sorted(free, key=lambda slot: (self.slots.filled[slot], slot)):
            self.slots.start_filling(slot)
            first_row = topology.group_of_slot(slot) * topology.rows
            rows = [self._trajectory(version, first_row + row) for row in range(topology.rows)]
            for trajectory in rows:
                log_probs, values = say(trajectory)
                trajectory.log_probs[:] = log_probs + self.random.normal(0, self.noise, topology.rollout)
                trajectory.values[:] = values + self.random.normal(0, 0.7, topology.rollout + 1)
            change(rows)
            for row, trajectory in enumerate(rows):
                trajectory.write(self.slots, slot, row)
            self.slots.finish_filling(slot)
            filled += rows
        return filled

    def _trajectory(self, version: int, stream: int) -> Trajectory:
        random, t = self.random, self.slots.topology.rollout
        ends = random.choice(4, t, p=[0.6, 0.18, 0.18, 0.04])
        terminated, truncated = (ends & 1).astype(bool), (ends & 2).astype(bool)  # a few are both
        observations = {
            name: random.normal(1, 2, (t + 1, *leaf.shape)).astype(leaf.dtype)
            for name, leaf in self.info.observations.items()
        }
        observations["obs"][:, -1] *= 5e-5  # so narrow that the epsilon of the variance shows
        policies = self._policies(terminated | truncated)
        is_filler = random.random(t) < self.fillers
        policies[is_filler], terminated[is_filler], truncated[is_filler] = NO_POLICY, True, False
        return Trajectory(
            observations=observations,
            initial_memory=random.uniform(-1, 1, self.slots.topology.memory_size).astype(np.float32),
            actions=self._actions(observations),
            log_probs=np.zeros(t, np.float32),
            values=np.zeros(t + 1, np.float32),
            final_values=np.where(truncated, random.normal(2, 3, t), np.nan).astype(np.float32),
            rewards=random.normal(0.5, 2, t).astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            policy_id=policies,
            policy_version=np.maximum(version - random.integers(0, self.oldest + 1, t), 0),
            stream=stream,
        )

    def _policies(self, ended: Array) -> Array:
        """[T] which policy acts; it changes only between two episodes."""
        policies, policy = np.zeros(len(ended), np.int64), self.random.integers(self.num_policies)
        for t, has_ended in enumerate(ended):
            policies[t] = policy
            if has_ended:
                policy = self.random.integers(self.num_policies)
        return policies

    def _actions(self, observations: dict[str, Array]) -> Array:
        """[T, ...] among those that are allowed; writes the masks, if there are some."""
        t, action = self.slots.topology.rollout, self.info.action
        if not action.choices:
            return self.random.normal(0, 1, (t, *action.shape)).astype(np.float32)
        columns, masks = [], []
        for choices in action.choices:
            mask = self.random.random((t + 1, choices)) < (0.6 if ACTION_MASK in observations else 1.0)
            mask[np.arange(t + 1), self.random.integers(choices, size=t + 1)] = True
            masks.append(mask)
            columns.append([self.random.choice(np.flatnonzero(allowed)) for allowed in mask[:-1]])
        if ACTION_MASK in observations:
            observations[ACTION_MASK] = np.concatenate(masks, 1).astype(observations[ACTION_MASK].dtype)
        actions: Any = np.array(columns, action.dtype).T
        return actions.reshape(t, *action.shape)  # type: ignore[no-any-return]
