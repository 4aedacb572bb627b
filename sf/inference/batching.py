"""Which requests form a batch: serve what waits now, or hold it back for a moment because more is about to come.

A forward pass costs nearly the same for one group as for several, so on a busy machine serving them together saves time
that the environments can use. Holding back is free as long as every rollout worker has another group to step meanwhile
(double buffering), and never worth more than the forward pass that it saves. Hence the rule: serve at once if half of
the groups wait or if some worker has nothing else to do; otherwise hold, but not longer than a forward pass takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from sf.arena import Array
from sf.slots import Requests, Slots

LONGEST_HOLD_S = 0.025
SMOOTHING = 0.05
"""Weight of the newest forward pass in the average."""


class Batching:
    """The decision of one inference worker."""

    def __init__(
        self,
        groups: Array,
        slots: Slots,
        requests: Requests,
        policy_id: int,
        now: Callable[[], float] = time.perf_counter,
    ):
        """Starts without a held request.

        Args:
            groups: [n] indices of the groups that are served, those of a worker side by side.
            slots: tell whether a group is in the middle of a trajectory.
            requests: tell who waits.
            policy_id: whose answers count.
            now: the clock, in seconds.
        """
        self.groups, self.slots, self.requests, self.policy_id, self.now = groups, slots, requests, policy_id, now
        topology = slots.topology
        self.per_worker = topology.groups_per_worker
        self.enough = max(1, len(groups) // 2)
        own_slots = np.array([topology.slots_of_group(group) for group in groups], np.int64)
        self.own_slots = own_slots.reshape(len(groups), topology.slots_per_group)
        self.forward_s = 0.0
        self.held_since: float | None = None

    def waiting(self) -> Array:
        """Positions in `groups` of the requests to serve now; empty if there are none or they are held back."""
        waits = self.requests.request[self.groups] != self.requests.answered[self.groups, self.policy_id]
        positions = np.flatnonzero(waits)
        if not positions.size or self._may_hold(waits, positions.size):
            return positions[:0]
        self.held_since = None
        return positions

    @property
    def hold_left_s(self) -> float:
        """How long a held request may still wait; infinite if none is held."""
        if self.held_since is None:
            return np.inf
        return max(0.0, self.held_since + min(self.forward_s, LONGEST_HOLD_S) - self.now())

    def served(self, seconds: float) -> None:
        """Hears how long a forward pass took."""
        self.forward_s += SMOOTHING * (seconds - self.forward_s)

    def _may_hold(self, waits: Array, count: int) -> bool:
        if count >= self.enough or self._some_worker_is_idle(waits):
            return False
        if self.held_since is None:
            self.held_since = self.now()
        return self.hold_left_s > 0

    def _some_worker_is_idle(self, waits: Array) -> bool:
        """Whether all groups of a worker wait, for actions or for a free slot."""
        in_trajectory = (self.slots.filling[self.own_slots] > self.slots.filled[self.own_slots]).any(axis=1)
        steps = in_trajectory & ~waits
        return not steps.reshape(-1, self.per_worker).any(axis=1).all()
