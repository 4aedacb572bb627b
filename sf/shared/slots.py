"""Trajectories in shared memory: their layout, the legal writer of each word, and the order of writes.

A *slot* holds T steps of all rows of one environment group, time-major, so that one step of a group is contiguous.
Each group has its own few slots and fills them in turn. Counters of each slot say in which state it is; each has one
writer, and the kernel stores it as a whole, so that a writer can be killed at any instruction:

    counter        written by                       meaning
    filling        the rollout worker of the group  how often it was handed out
    filled         the rollout worker of the group  how often filling has ended
    discarded[r]   see `Discard`                    how often its content was thrown away for reason r
    taken[p]       learner p                        how often learner p has begun to train on it
    released[p]    learner p                        how often learner p has finished with it
    unused[p]      learner p                        how often without a single optimizer step on any part of it

Where policy p has several learners, each of them owns the slots of some groups and writes their words.

    state          holds when                                           next, by which process
    FREE           filling = filled + discarded, and filled =           FILLING, rollout worker
                   released[p] for all p
    FILLING        filling = filled + discarded + 1                     FULL, rollout worker; FREE, see `Discard`
    FULL           filled > released[p] for some p, and none has taken  TRAINING, the learners
    TRAINING       taken[p] > released[p] for some p                    FREE, the last learner to release

A full slot is offered to every learner; one whose policy acted in none of its rows releases it untouched. Slots are the
only currency of back-pressure: a group without a free slot does not sample. Datasets in flight are therefore bounded by
the number of slots, and nothing is ever dropped unseen: `sf.shared.ledger` accounts for every hand-out. Each writer
finishes its data before it publishes its counter, and rings a doorbell after it. A process that goes on with the data
observes the counter first, see `sf.shared.order`. Both hold for requests and their answers as well.

A *request* is how a group asks for actions. `request[g]` counts the requests of group g, and `answered[g, p]` those
that the inference worker for policy p has answered. The group goes on when all policies have answered. The request is
about step `request_step[g]` of slot `request_slot[g]`; step T asks for values only, those of the last observation. Both
counts go on when a worker is replaced, so an answer to its predecessor is ignored.

The recurrent state of a policy lies with the group, one row per agent. The inference worker that answers request r
about step t takes it from half `r % 2`, as zeros where step t-1 ended an episode. It leaves the next state in the other
half; step T passes it on as it is. A request can therefore be answered again, by the successor of an inference worker
that died before it said so. A slot keeps the recurrent state that its trajectories began with.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import numpy as np

from sf.errors import InternalError
from sf.shared.arena import Arena, Array
from sf.shared.fields import SlotArray, Writer
from sf.shared.order import observe, publish
from sf.shared.slot_fields import (
    FINAL_OBSERVATIONS,
    HAS_LAST_OBSERVATION,
    LAST_OBSERVATIONS,
    OBSERVATIONS,
    Discard,
    below,
)
from sf.shared.topology import Topology


class SlotState(enum.Enum):
    FREE = "FREE"
    FILLING = "FILLING"
    FULL = "FULL"
    TRAINING = "TRAINING"


class SlotError(InternalError):
    """A slot was used out of turn; always a bug of ours."""


class Slots:
    """The trajectory memory and the only functions that move a slot from one state to the next."""

    # The arrays of these names, so that readers and writers say `slots.rewards`. Other stored fields, among them those
    # that an algorithm adds, are `slots["name"]`.
    actions: Array
    log_probs: Array
    values: Array
    final_values: Array
    rewards: Array
    terminated: Array
    truncated: Array
    policy_id: Array
    policy_version: Array
    initial_memory: Array
    is_new: Array
    """Whether a trajectory begins with a new episode, or after a step that no policy owns."""
    memory: Array
    has_final_observation: Array
    fillers: Array
    """[groups, policies] rows of the pending request for which an action is computed that will be no transition."""
    filling: Array
    filled: Array
    discarded: Array
    taken: Array
    released: Array
    unused: Array
    allowed_slots: Array
    """[groups] slots that a group may have begun so far, written by its learner, see `sf.learner.admission`."""

    def __init__(self, topology: Topology, arena: Arena):
        self.topology = topology
        self.fields = {name: field.stored for name, field in arena.fields.items() if isinstance(field, SlotArray)}
        """The table: `slot_fields` and the extra fields of the run."""
        self._stored = {name: arena[name] for name in self.fields}
        self._acted = [
            self._stored[name]
            for name, field in self.fields.items()
            if field.writer is Writer.INFERENCE and field.axes.has_time
        ]
        self.observations = below(OBSERVATIONS, self._stored)
        self.final_observations = below(FINAL_OBSERVATIONS, arena.arrays)
        self.last_observations = below(LAST_OBSERVATIONS, self._stored)
        """[slots, steps, rows, ...] by leaf; nothing where no algorithm asks for them."""
        for name in Slots.__annotations__:
            setattr(self, name, arena[name])

    def __getitem__(self, name: str) -> Array:
        """The array of a stored field, [slots, ...]."""
        return self._stored[name]

    def blank(self, slot: int, t: int, rows: Array) -> None:
        """Zeros in all that inference would write in step t for rows [n] that are not there, and in the next value."""
        for array in self._acted:
            array[slot, t, rows] = 0
        self.values[slot, t + 1, rows] = 0

    def write_heads(self, slot: int, t: int, rows: Array | slice, heads: Mapping[str, Array]) -> None:
        """What further heads of the network say of a step, or of the last observation where a field has room for it."""
        for name, head in heads.items():
            steps = self[name][slot]
            if t < len(steps):
                steps[t, rows] = head

    def keep_last_observations(self, group: int, slot: int, t: int) -> None:
        """Stores the final observations of a step, where an algorithm asks for them; by the rollout worker."""
        if self.last_observations:
            rows = np.flatnonzero(self.has_final_observation[group])
            for key, array in self.last_observations.items():
                array[slot, t, rows] = self.final_observations[key][group, rows]
            self[HAS_LAST_OBSERVATION][slot, t, rows] = True

    def ended(self, slot: int, t: int) -> Array:
        """[rows] bool, whether step t ended an episode."""
        ended: Array = self.terminated[slot, t] | self.truncated[slot, t]
        return ended

    def state(self, slot: int) -> SlotState:
        filled, discarded = self.filled[slot], self.discarded[slot].sum()
        released = observe(self.released, slot)  # last, so that a free slot may be written after it
        if self.filling[slot] > filled + discarded:
            return SlotState.FILLING
        if (self.taken[slot] > released).any():
            return SlotState.TRAINING
        return SlotState.FREE if (released == filled).all() else SlotState.FULL

    def may_begin(self, group: int) -> bool:
        """Whether the group has begun fewer slots than it is allowed to."""
        own = self.topology.slots_of_group(group)
        return bool(self.filling[own.start : own.stop].sum() < self.allowed_slots[group])

    def start_filling(self, slot: int) -> None:
        """FREE → FILLING, by the rollout worker that owns the slot."""
        self._expect(slot, SlotState.FREE, "a rollout worker began to fill")
        self.filling[slot] += 1
        if self.last_observations:
            self[HAS_LAST_OBSERVATION][slot] = False

    def finish_filling(self, slot: int) -> None:
        """FILLING → FULL, by the rollout worker that owns the slot; all its data is written before this line."""
        self._expect(slot, SlotState.FILLING, "a rollout worker finished")
        publish(self.filled, slot, self.filled[slot] + 1)

    def discard(self, slot: int, why: Discard) -> None:
        """FILLING → FREE, by whom the reason names."""
        self._expect(slot, SlotState.FILLING, f"the content was discarded ({why.name}) of")
        publish(self.discarded, (slot, why), self.discarded[slot, why] + 1)

    def discard_of_worker(self, worker: int) -> int:
        """Throws away what a rollout worker that is no more was filling, by the supervisor; returns how many slots."""
        groups = self.topology.groups_of_worker(worker)
        slots = [slot for group in groups for slot in self.topology.slots_of_group(group)]
        unfinished = [slot for slot in slots if self.state(slot) is SlotState.FILLING]
        for slot in unfinished:
            self.discard(slot, Discard.WORKER_DIED)
        return len(unfinished)

    def waiting_for(self, policy: int, learner: int = 0) -> Array:
        """Indices of the full slots that this learner of the policy has not taken yet, in the order of their rounds.

        A group fills its slots in turn, so the slot that it filled first has to be given back first: it waits for that
        one.
        """
        own = self.topology.slots_of_learner(learner)
        filled = observe(self.filled, slice(own.start, own.stop))
        waiting = np.flatnonzero(filled > self.taken[own.start : own.stop, policy])
        return own.start + waiting[np.argsort(filled[waiting], kind="stable")]

    def take(self, slot: int, policy: int) -> None:
        """FULL → TRAINING, by learner `policy`."""
        if self.taken[slot, policy] >= self.filled[slot]:
            raise SlotError(f"learner-{policy} took slot {slot} in state {self.state(slot).value}, expected FULL.")
        self.taken[slot, policy] += 1

    def release(self, slot: int, policy: int, was_used: bool = True) -> None:
        """TRAINING → FREE once every learner has released, by learner `policy`; it does not look at the slot again.

        Args:
            slot: which one.
            policy: of the learner.
            was_used: it took an optimizer step on some of it.
        """
        if self.taken[slot, policy] != self.released[slot, policy] + 1:
            raise SlotError(
                f"learner-{policy} released slot {slot}, which it does not hold ({self.state(slot).value})."
            )
        self.unused[slot, policy] += not was_used
        publish(self.released, (slot, policy), self.released[slot, policy] + 1)

    def was_unused(self, slot: int, policy: int) -> None:
        """For a slot that learner `policy` has released before it trained: there was no optimizer step on any of it."""
        self.unused[slot, policy] += 1

    def _expect(self, slot: int, expected: SlotState, what: str) -> None:
        if (state := self.state(slot)) is not expected:
            raise SlotError(f"{what} slot {slot} in state {state.value}, expected {expected.value}.")
