"""The sizes of the shared memory, and which process owns what of it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """How many of everything there are; all sizes of the shared memory follow from it."""

    num_workers: int
    groups_per_worker: int
    envs_per_group: int
    agents_per_env: int
    rollout: int
    slots_per_group: int
    num_policies: int
    inference_per_policy: int
    memory_size: int = 0
    """Numbers in the recurrent state of one agent."""
    num_learners: int = 1
    """Learners of each policy, which share the groups evenly."""
    workers_act: bool = False
    """Rollout worker i acts for itself, and has the places of inference worker i of each policy."""

    @property
    def rows(self) -> int:
        """Agents in one group; they advance in lockstep."""
        return self.envs_per_group * self.agents_per_env

    @property
    def every_row_acts(self) -> bool:
        """Whether the only policy acts in every row of every step; else for the rows that have its id."""
        return self.num_policies == self.agents_per_env == 1

    @property
    def num_groups(self) -> int:
        return self.num_workers * self.groups_per_worker

    @property
    def num_slots(self) -> int:
        return self.num_groups * self.slots_per_group

    @property
    def samples_per_round(self) -> int:
        """Transitions of one trajectory from every agent, for all policies together."""
        return self.num_groups * self.rows * self.rollout

    def groups_of_worker(self, worker: int) -> range:
        return range(worker * self.groups_per_worker, (worker + 1) * self.groups_per_worker)

    def worker_of_group(self, group: int) -> int:
        return group // self.groups_per_worker

    def learner_of_group(self, group: int) -> int:
        """Which learner of each policy trains on the trajectories of a group."""
        return group * self.num_learners // self.num_groups

    def learners_of_worker(self, worker: int) -> range:
        groups = self.groups_of_worker(worker)
        return range(self.learner_of_group(groups[0]), self.learner_of_group(groups[-1]) + 1)

    def slots_of_learner(self, learner: int) -> range:
        each = self.num_slots // self.num_learners
        return range(learner * each, (learner + 1) * each)

    def slots_of_group(self, group: int) -> range:
        return range(group * self.slots_per_group, (group + 1) * self.slots_per_group)

    def group_of_slot(self, slot: int) -> int:
        return slot // self.slots_per_group

    def workers_of_inference(self, index: int) -> range:
        """The rollout workers that inference worker `index` of each policy serves, always the same ones."""
        return range(index, self.num_workers, self.inference_per_policy)


def slots_per_group(dataset: int, rows: int, num_groups: int, datasets_in_flight: int) -> int:
    """Slots that each group needs to hold at most `datasets_in_flight` datasets, and enough for one in any case.

    A dataset may end inside a slot. The rows that it took stay occupied until the rest of that slot has been trained
    on, at most `rows - gcd(dataset, rows)` of them. Without room for a dataset beside them the run would stand still.

    Args:
        dataset: trajectories, of all policies together.
        rows: of one group, that is trajectories in one slot.
        num_groups: of all workers.
        datasets_in_flight: that may be collected, wait or train.
    """
    per_slot_of_each = rows * num_groups
    needed = dataset + rows - math.gcd(dataset, rows)
    return max(dataset * datasets_in_flight // per_slot_of_each, -(-needed // per_slot_of_each))
