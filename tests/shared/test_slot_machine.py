"""The slots as a state machine: groups write, learners learn, workers are killed and replaced, the run stops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sf.shared.arena import Arena
from sf.shared.ledger import Ledger
from sf.shared.slot_fields import slot_memory
from sf.shared.slots import Slots, SlotState
from sf.shared.topology import Topology
from sf.spaces import ActionSpec, EnvInfo, LeafSpec

INFO = EnvInfo("Test-v0", 1, {"obs": LeafSpec((3,), "float32")}, ActionSpec.discrete(2))
GROUPS, SLOTS = st.integers(0, 3), st.integers(0, 7)


class SlotMachine(RuleBasedStateMachine):
    """Two workers with two groups each, two slots per group, one to three learners that all see every slot.

    Rewards hold who wrote them: worker, life of the worker and how often the slot was handed out. A trajectory is whole
    if all its steps say the same.
    """

    @initialize(num_policies=st.integers(1, 3))
    def begin(self, num_policies: int) -> None:
        self.topology = Topology(
            num_workers=2, groups_per_worker=2, envs_per_group=3, agents_per_env=1, rollout=4,
            slots_per_group=2, num_policies=num_policies, inference_per_policy=1,
        )  # fmt: skip
        self.slots = Slots(self.topology, Arena(slot_memory(self.topology, INFO)))
        self.lives = [0, 0]
        self.writing: dict[int, tuple[int, int]] = {}
        """Group to its slot and the steps written."""
        self.held: list[set[int]] = [set() for _ in range(num_policies)]
        self.handed_out = self.completed = self.thrown_away = self.unused = 0
        self.learned = np.zeros(num_policies, int)

    def stamp(self, group: int, slot: int) -> float:
        worker = self.topology.worker_of_group(group)
        return float(worker * 10_000 + self.lives[worker] * 100 + int(self.slots.filling[slot]) % 100)

    @rule(group=GROUPS)
    def start(self, group: int) -> None:
        own = self.topology.slots_of_group(group)
        slot = own[int(self.slots.filled[own].sum()) % len(own)]
        if group not in self.writing and self.slots.state(slot) is SlotState.FREE:
            self.slots.start_filling(slot)
            self.writing[group] = slot, 0
            self.handed_out += 1

    @rule(group=GROUPS)
    def write(self, group: int) -> None:
        if group in self.writing:
            slot, steps = self.writing[group]
            if steps < self.topology.rollout:
                self.slots.rewards[slot, steps] = self.stamp(group, slot)
                self.writing[group] = slot, steps + 1

    @rule(group=GROUPS)
    def publish(self, group: int) -> None:
        if group in self.writing and self.writing[group][1] == self.topology.rollout:
            self.slots.finish_filling(self.writing.pop(group)[0])
            self.completed += 1

    @rule(policy=st.integers(0, 2))
    def take(self, policy: int) -> None:
        if policy < self.topology.num_policies:
            for slot in self.slots.waiting_for(policy).tolist():
                self.slots.take(slot, policy)
                self.held[policy].add(slot)

    @precondition(lambda self: any(self.held))
    @rule(policy=st.integers(0, 2), was_used=st.booleans())
    def learn(self, policy: int, was_used: bool) -> None:
        if policy < self.topology.num_policies and self.held[policy]:
            slot = min(self.held[policy])
            self.held[policy].remove(slot)
            rewards = self.slots.rewards[slot]
            assert (rewards == rewards[0, 0]).all(), "a torn trajectory is learned"
            assert self.slots.state(slot) is SlotState.TRAINING
            self.slots.release(slot, policy, was_used)
            self.learned[policy] += 1
            self.unused += not was_used and self.topology.num_policies == 1

    @rule(worker=st.integers(0, 1))
    def kill_and_restart(self, worker: int) -> None:
        lost = [group for group in self.topology.groups_of_worker(worker) if group in self.writing]
        assert self.slots.discard_of_worker(worker) == len(lost)
        for group in lost:
            del self.writing[group]
        self.thrown_away += len(lost)
        self.lives[worker] += 1

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "slots"):
            return
        ledger = Ledger.of(self.slots, has_ended=False)
        assert ledger.is_balanced, ledger.line()
        assert ledger.allocated == self.handed_out
        assert ledger.discarded["worker_died"] == self.thrown_away
        assert ledger.discarded["unused"] == self.unused
        assert ledger.learned + self.unused == int((self.slots.released.min(axis=1)).sum()) <= self.learned.min()

    @invariant()
    def every_slot_has_one_state_and_one_owner(self) -> None:
        if not hasattr(self, "slots"):
            return
        filling = {slot for slot, _ in self.writing.values()}
        for slot in range(self.topology.num_slots):
            state = self.slots.state(slot)
            assert (state is SlotState.FILLING) == (slot in filling)
            assert (state is SlotState.TRAINING) == any(slot in held for held in self.held)
        assert self.completed * self.topology.num_policies == (
            self.learned.sum()
            + sum(len(held) for held in self.held)
            + sum(len(self.slots.waiting_for(policy)) for policy in range(self.topology.num_policies))
        )

    def teardown(self) -> None:
        if hasattr(self, "slots"):
            ended = Ledger.of(self.slots, has_ended=True)
            assert ended.is_balanced
            assert ended.in_flight == 0


def check(examples: int, derandomize: bool) -> None:
    rules = settings(
        max_examples=examples, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck),
        derandomize=derandomize,
    )  # fmt: skip
    run_state_machine_as_test(SlotMachine, settings=rules)


def test_ledger_and_slots_as_a_state_machine() -> None:
    """The same programs every time; the slow test looks for new ones."""
    check(40, derandomize=True)


@pytest.mark.slow
def test_ledger_and_slots_as_a_state_machine_for_100_000_steps() -> None:
    check(2000, derandomize=False)
