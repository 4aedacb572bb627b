"""Slots: their states, who may change them, and that nothing is lost, doubled or shared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sf.shared.arena import Arena
from sf.shared.requests import Requests
from sf.shared.slot_fields import slot_memory
from sf.shared.slots import SlotError, Slots, SlotState
from sf.shared.topology import Topology, slots_per_group
from sf.spaces import ActionSpec, EnvInfo, LeafSpec

INFO = EnvInfo("Test-v0", 1, {"obs": LeafSpec((3,), "float32")}, ActionSpec.discrete(2))


def make_slots(num_policies: int = 1, slots_per_group: int = 2) -> tuple[Topology, Slots, Requests]:
    topology = Topology(
        num_workers=2, groups_per_worker=2, envs_per_group=3, agents_per_env=1, rollout=4,
        slots_per_group=slots_per_group, num_policies=num_policies, inference_per_policy=1,
    )  # fmt: skip
    arena = Arena(slot_memory(topology, INFO))
    return topology, Slots(topology, arena), Requests(topology, arena)


def test_fresh_memory_is_poisoned() -> None:
    _, slots, _ = make_slots()
    assert np.isnan(slots.observations["obs"]).all()
    assert np.isnan(slots.rewards).all()
    assert (slots.policy_version == -1).all()
    assert (slots.actions == -1).all()


def test_labels_are_int64() -> None:
    """Row A3: float32 labels would be exact only below 2^24."""
    _, slots, _ = make_slots()
    assert slots.policy_version.dtype == np.int64


def test_life_of_a_slot() -> None:
    _, slots, _ = make_slots()
    states = [slots.state(5)]
    slots.start_filling(5)
    states.append(slots.state(5))
    slots.finish_filling(5)
    states.append(slots.state(5))
    slots.take(5, 0)
    states.append(slots.state(5))
    slots.release(5, 0)
    states.append(slots.state(5))
    expected = [SlotState.FREE, SlotState.FILLING, SlotState.FULL, SlotState.TRAINING, SlotState.FREE]
    assert states == expected


def test_a_slot_is_free_when_every_learner_has_released_it() -> None:
    _, slots, _ = make_slots(num_policies=2)
    slots.start_filling(0)
    slots.finish_filling(0)
    slots.take(0, 1)
    slots.release(0, 1)
    assert slots.state(0) is SlotState.FULL
    slots.take(0, 0)
    assert slots.state(0) is SlotState.TRAINING
    slots.release(0, 0)
    assert slots.state(0) is SlotState.FREE


def test_steps_out_of_turn_are_refused() -> None:
    _, slots, _ = make_slots()
    with pytest.raises(SlotError, match="learner-0 took slot 3 in state FREE, expected FULL"):
        slots.take(3, 0)
    slots.start_filling(3)
    with pytest.raises(SlotError, match="began to fill slot 3 in state FILLING, expected FREE"):
        slots.start_filling(3)
    with pytest.raises(SlotError, match="took slot 3 in state FILLING"):
        slots.take(3, 0)
    with pytest.raises(SlotError, match="released slot 3, which it does not hold"):
        slots.release(3, 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=300), st.integers(1, 3))
def test_random_interleavings_never_lose_or_share_a_slot(moves: list[tuple[int, int]], num_policies: int) -> None:
    """Whatever the order: every filled slot is trained on once by every learner before it is filled again."""
    _, slots, _ = make_slots(num_policies)
    filled = np.zeros(8, int)
    learned = np.zeros((8, num_policies), int)
    held: list[set[int]] = [set() for _ in range(num_policies)]
    for move, slot in moves:
        policy = slot % num_policies
        if move == 0 and slots.state(slot) is SlotState.FREE:
            assert (learned[slot] == filled[slot]).all()
            slots.start_filling(slot)
        elif move == 1 and slots.state(slot) is SlotState.FILLING:
            slots.finish_filling(slot)
            filled[slot] += 1
        elif move == 2:
            for waiting in slots.waiting_for(policy):
                slots.take(int(waiting), policy)
                held[policy].add(int(waiting))
        elif move == 3 and held[policy]:
            mine = held[policy].pop()
            slots.release(mine, policy)
            learned[mine, policy] += 1
    held_now = np.array([[slot in held[policy] for policy in range(num_policies)] for slot in range(8)])
    waiting = np.array([np.isin(np.arange(8), slots.waiting_for(policy)) for policy in range(num_policies)]).T
    assert (learned + held_now + waiting == filled[:, None]).all()


def test_requests_are_answered_by_every_policy() -> None:
    _, _, requests = make_slots(num_policies=2)
    assert requests.is_answered(1)
    requests.ask(1, slot=2, step=0)
    assert not requests.is_answered(1)
    requests.answered[1, 0] = 1
    assert not requests.is_answered(1)
    requests.answered[1, 1] = 1
    assert requests.is_answered(1)


@pytest.mark.parametrize(
    ("dataset", "in_flight", "expected"), [(128, 1, 1), (128, 2, 2), (256, 1, 2), (256, 2, 4), (16, 2, 1), (192, 2, 3)]
)
def test_a13_slots_hold_the_datasets_in_flight(dataset: int, in_flight: int, expected: int) -> None:
    """Four groups of 32 rows: 128 trajectories in a sampling round."""
    assert slots_per_group(dataset, rows=32, num_groups=4, datasets_in_flight=in_flight) == expected


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3))
def test_a13_sampling_always_continues(dataset: int, rows: int, num_groups: int, in_flight: int) -> None:
    """Whatever the sizes: when every slot is full there is a dataset in them, the open slot's used rows aside."""
    num_slots = num_groups * slots_per_group(dataset, rows, num_groups, in_flight)
    used = 0
    for _ in range(50):
        assert num_slots * rows - used >= dataset
        used = (used + dataset) % rows


def test_shape_of_the_shared_memory() -> None:
    topology, slots, _ = make_slots()
    assert topology.num_slots == 8
    assert slots.observations["obs"].shape == (8, 5, 3, 3)
    assert slots.rewards.shape == (8, 4, 3)
    assert [topology.group_of_slot(slot) for slot in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert list(topology.groups_of_worker(1)) == [2, 3]
