"""Admission: a group begins a trajectory only if the last optimizer step on it can come in time (`--bound_policy_lag`).

A batch takes D trajectories and K optimizer steps. When d batches are over, the last of them at version V_d, the j-th
batch from now on, counted from 1, sees its last step at version V_d + j K - 1. A trajectory that begins now, at version
V, can be in it under a bound of N while V_d + j K - 1 - V <= N. So D (d + floor((N + 1 + V - V_d) / K)) trajectories
may have begun by now, in the arithmetic of AReaL (Fu et al. 2025, arXiv:2505.24298, section 5.1).

The learner deals the permissions, because one writer needs no lock: `allowed_slots[g]` says how many slots group g may
have begun. A permission that lies unused for a second goes to another group. That no transition above the bound trains
is not left to this: the learner masks the transitions of a worker that has stood still in the middle of a trajectory.
An asynchronous run with replay is admitted under `--max_staleness` in the same way, and its draws keep to the limit.
"""

from __future__ import annotations

import time

import numpy as np

from sf.learner.lag_target import LagTarget
from sf.shared.arena import Array
from sf.shared.slots import Slots

UNUSED_S = 1.0
"""After which a permission goes to another group."""


class Admission:
    """Deals permissions to the groups of one learner."""

    def __init__(
        self,
        slots: Slots,
        learner: int,
        trajectories: int,
        steps: int,
        bound: int | None,
        version: int,
        target: LagTarget | None = None,
    ) -> None:
        """Deals nothing yet.

        Args:
            slots: with the words of all groups.
            learner: whose groups these are.
            trajectories: D, of one batch.
            steps: K, optimizer steps on one batch.
            bound: N, largest policy lag; None where only a target limits it.
            version: of the policy before the first batch.
            target: a further limit, which moves; it need not be a whole number of batches.
        """
        topology = slots.topology
        self._slots, self._rows = slots, topology.rows
        self._groups = np.array([g for g in range(topology.num_groups) if topology.learner_of_group(g) == learner])
        self._slots_of_groups = np.array([list(topology.slots_of_group(g)) for g in self._groups])
        self._trajectories, self._steps, self._bound, self._target = trajectories, steps, bound, target
        self._num_used, self._version_before = 0, version
        self._dealt_s = np.zeros(len(self._groups))
        slots.allowed_slots[self._groups] = 0

    def batch_is_over(self, version: int, num_used: int) -> None:
        """Notes that a batch is trained on, after which the policy has this version.

        Args:
            version: V_d.
            num_used: D d, trajectories in all batches so far.
        """
        self._num_used, self._version_before = num_used, version

    def deal(self, version: int) -> bool:
        """Gives what may begin under this version; says whether a group may begin that could not before."""
        begun = self._slots.filling[self._slots_of_groups].sum(1)
        thrown_away = self._slots.discarded[self._slots_of_groups].sum((1, 2))
        allowed, now = self._slots.allowed_slots[self._groups], time.monotonic()
        unused = np.maximum(allowed - begun, 0)  # a group may have begun one before the first deal
        left = self._num_allowed(version) - int((begun - thrown_away).sum()) - int(unused.sum())
        wants = np.flatnonzero((unused <= 0) & self._have_free_slots())
        if left <= 0 and len(wants):
            idle = np.flatnonzero((unused > 0) & (now - self._dealt_s > UNUSED_S))
            allowed[idle] = begun[idle]
            left += int(unused[idle].sum())
        chosen = wants[np.argsort(begun[wants], kind="stable")][: max(0, left)]
        allowed[chosen] = begun[chosen] + 1
        self._dealt_s[chosen] = now
        self._slots.allowed_slots[self._groups] = allowed
        return bool(len(chosen))

    def _have_free_slots(self) -> Array:
        """[groups] bool."""
        own, slots = self._slots_of_groups, self._slots
        is_whole = slots.filling[own] == slots.filled[own] + slots.discarded[own].sum(2)
        is_back = (slots.released[own] == slots.filled[own][..., None]).all(2)
        free: Array = (is_whole & is_back).any(1)
        return free

    def _num_allowed(self, version: int) -> int:
        """Slots that may have begun by now, those for the next batch at least."""
        begun, room = 1 + version - self._version_before, []
        if self._bound is not None:
            room.append(self._trajectories * ((self._bound + begun) // self._steps))
        if self._target is not None:
            room.append(int(self._trajectories * (self._target.limit + begun) / self._steps))
        in_time = (self._num_used + min(room)) // self._rows
        return max(in_time, -(-(self._num_used + self._trajectories) // self._rows))
