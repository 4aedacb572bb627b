"""Storages and the buffer: a ring of rows, nested or not, and what does not fit."""

from __future__ import annotations

import uuid
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from sf.replay import ListStorage, PolicyVersion, ReplayBuffer, StalenessAwareSampler, TensorStorage
from tests.helpers.handed_over import Kept, overwrite


def rows(*numbers: int) -> dict[str, Any]:
    values = torch.tensor(numbers)
    return {"policy_version": torch.zeros_like(values), "part": {"x": values, "pair": values.unsqueeze(-1) * 1.5}}


@pytest.mark.parametrize("kind", [TensorStorage, ListStorage])
@pytest.mark.parametrize("sizes", [[3, 3, 3], [5, 5], [1, 2, 4, 5], [2, 3, 5, 1], [9], [3, 12]])
def test_the_newest_rows_remain(kind: Any, sizes: list[int]) -> None:
    buffer, number = ReplayBuffer(kind(5), StalenessAwareSampler()), 0
    kept: dict[int, int] = {}
    for size in sizes:
        index = buffer.extend(rows(*range(number, number + size)))
        kept |= dict(zip(index.tolist(), range(number, number + size), strict=True))
        number += size
        assert len(buffer) == min(number, 5)
    assert sorted(kept.values()) == list(range(max(0, number - 5), number))
    read = buffer.storage.read(torch.tensor(list(kept)))
    assert read["part"]["x"].tolist() == list(kept.values())
    assert read["part"]["pair"][:, 0].tolist() == [1.5 * value for value in kept.values()]


@pytest.mark.parametrize("kind", [TensorStorage, ListStorage])
def test_rows_are_known_by_their_names_in_any_order(kind: Any) -> None:
    buffer = ReplayBuffer(kind(4), StalenessAwareSampler())
    one, two = torch.tensor([1]), torch.tensor([2])
    buffer.extend({"policy_version": one, "part": {"a": one, "b": two}})
    buffer.extend({"part": {"b": two, "a": one}, "policy_version": one})
    read = buffer.storage.read(torch.tensor([0, 1]))
    assert read["policy_version"].tolist() == read["part"]["a"].tolist() == [1, 1]
    assert read["part"]["b"].tolist() == [2, 2]


def test_a_single_row_is_added() -> None:
    buffer = ReplayBuffer(TensorStorage(3), StalenessAwareSampler(), batch_size=1)
    assert buffer.add({"policy_version": torch.tensor(0), "x": torch.tensor([1.0, 2.0])}) == 0
    assert buffer.sample()[0]["x"].tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("kind", [TensorStorage, ListStorage])
def test_nothing_that_goes_in_or_out_is_shared(kind: Any) -> None:
    """Rows that were given, rows that were drawn, and states, in both directions."""
    buffer, given = ReplayBuffer(kind(5), StalenessAwareSampler(), 3), rows(1, 2, 3)
    buffer.extend(given)
    before = Kept(buffer.storage.read(torch.arange(3)))
    for thing in (given, buffer.sample(), buffer.state_dict()):
        overwrite(thing)
        before.expect_equal(buffer.storage.read(torch.arange(3)))
    state, other = buffer.state_dict(), ReplayBuffer(kind(5), StalenessAwareSampler(), 3)
    other.load_state_dict(state)
    overwrite(state)
    before.expect_equal(other.storage.read(torch.arange(3)))


def test_what_is_read_is_a_copy() -> None:
    buffer = ReplayBuffer(TensorStorage(3), StalenessAwareSampler(), batch_size=1)
    buffer.extend(rows(7))
    buffer.sample()[0]["part"]["x"].zero_()
    assert buffer.sample()[0]["part"]["x"].tolist() == [7]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"policy_version": torch.zeros(2)}, "has the columns .* but the new rows have"),
        ({"policy_version": torch.zeros(2, 3), "x": torch.zeros(2)}, r"float32\[\], but the new rows have .*\[3\]"),
        ({"policy_version": torch.zeros(2), "x": torch.zeros(2, dtype=torch.int64)}, r"have torch\.int64\[\] there"),
        ({"policy_version": torch.zeros(2), "x": torch.zeros(3)}, r"same number of rows, but they have \[2, 3\]"),
    ],
)
def test_rows_that_do_not_fit_are_refused(more: dict[str, Any], sentence: str) -> None:
    buffer = ReplayBuffer(TensorStorage(4), StalenessAwareSampler())
    buffer.extend({"x": torch.zeros(2), "policy_version": torch.zeros(2)})
    with pytest.raises(ValueError, match=sentence):
        buffer.extend(more)
    assert len(buffer) == 2


@pytest.mark.parametrize("kind", [TensorStorage, ListStorage])
@pytest.mark.parametrize("num_rows", [0, 3, 12])
def test_a_buffer_goes_on_from_its_state(kind: Any, num_rows: int) -> None:
    """Rows, the place of the next one, the sampler and the random numbers; the state shares no memory."""
    samplers: list[StalenessAwareSampler] = []

    def made() -> ReplayBuffer:
        samplers.append(StalenessAwareSampler())
        return ReplayBuffer(kind(5), samplers[-1], 4, torch.Generator().manual_seed(7))

    buffer, other = made(), made()
    if num_rows:
        buffer.extend(rows(*range(num_rows)))
        buffer.sample()
    samplers[0].consumer_version = 3
    state = buffer.state_dict()
    buffer.extend(rows(50))  # changes nothing in the state
    other.extend(rows(70, 71))
    other.load_state_dict(state)
    again = made()
    again.load_state_dict(state)
    assert len(other) == len(again) == min(5, num_rows)
    assert [sampler.consumer_version for sampler in samplers] == [3, 3, 3]
    for each in (other, again):
        assert each.extend(rows(8, 9)).tolist() == [num_rows % 5, (num_rows + 1) % 5]
    for one, two in zip(other.sample(), again.sample(), strict=True):
        assert str(one) == str(two)
    kept = set(range(max(0, num_rows + 2 - 5), num_rows)) | {8, 9}
    assert set(other.storage.column(("part", "x")).tolist()) == kept


def test_a_buffer_goes_on_with_the_draws_of_the_one_whose_state_it_takes() -> None:
    one, two = (
        ReplayBuffer(TensorStorage(50), StalenessAwareSampler(), 4, torch.Generator().manual_seed(seed))
        for seed in (1, 2)
    )
    one.extend(rows(*range(50)))
    one.sample()
    two.load_state_dict(one.state_dict())
    draws = [[buffer.sample()[0]["part"]["x"].tolist() for _ in range(3)] for buffer in (one, two)]
    assert draws[0] == draws[1]


def test_a_state_of_another_size_is_refused() -> None:
    state = ReplayBuffer(TensorStorage(5), StalenessAwareSampler()).state_dict()
    with pytest.raises(ValueError, match="is of a storage of max_size=5, but this one has 4"):
        ReplayBuffer(TensorStorage(4), StalenessAwareSampler()).load_state_dict(state)


@pytest.mark.parametrize("kind", [int, "int", str, "uuid", uuid.UUID])
def test_e18_kinds_of_versions_are_named_as_in_torchrl(kind: Any) -> None:
    version = PolicyVersion(kind)
    version.increment_version()
    assert isinstance(version.version, int) == (kind in (int, "int"))
    other = PolicyVersion(kind)
    other.load_state_dict(version.state_dict())
    assert (other.version, other.history) == (version.version, version.history)
    other.increment_version()
    assert other.history[:-1] == version.history, "a history of its own"
    wrong = PolicyVersion(str if kind in (int, "int") else int)
    with pytest.raises(ValueError, match="The state has versions of version_type='"):
        wrong.load_state_dict(version.state_dict())


def test_e18_other_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"version_type=<class 'float'> must be 'int' or 'uuid'"):
        PolicyVersion(float)


def test_a_buffer_without_room_or_batch_size_is_refused() -> None:
    for kind in (TensorStorage, ListStorage):
        with pytest.raises(ValueError, match="max_size=0 leaves no room"):
            kind(0)
    with pytest.raises(ValueError, match="Give a batch size"):
        ReplayBuffer(TensorStorage(2), StalenessAwareSampler()).sample()


def test_an_emptied_buffer_begins_again() -> None:
    buffer = ReplayBuffer(TensorStorage(4), StalenessAwareSampler())
    buffer.extend(rows(1, 2, 3))
    buffer.empty()
    assert len(buffer) == 0
    assert buffer.extend(rows(9)).tolist() == [0]


def test_e18_labels_switch_at_the_action_after_the_update() -> None:
    """The weights change in the middle of a rollout, once while a step is under way."""
    version = PolicyVersion()
    env = version.wrap(gymnasium.make("CartPole-v1"))
    env.reset(seed=0)
    labels = []
    for step in range(6):
        if step in (2, 3):
            version.increment_version()
        *_, info = env.step(np.int64(step % 2))
        labels.append(info["policy_version"])
    assert labels == [0, 0, 1, 2, 2, 2]
    assert version.history == [0, 1, 2]


class Updating(gymnasium.Env[Any, Any]):
    """Its step updates the weights."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, version: PolicyVersion) -> None:
        self.version = version

    def step(self, action: Any) -> Any:
        self.version.increment_version()
        return 0, 0.0, False, False, {"kept": True}


def test_e18_a_step_carries_the_version_that_acted() -> None:
    version = PolicyVersion()
    *_, info = version.wrap(Updating(version)).step(0)
    assert info == {"kept": True, "policy_version": 0}
    assert version.version == 1


def test_e18_rows_are_stamped_for_the_sampler() -> None:
    version = PolicyVersion(version_key="version")
    version.increment_version()
    stamped = version.stamp({"x": torch.zeros(3, 2)})
    assert stamped["version"].tolist() == [1, 1, 1]
    sampler = StalenessAwareSampler(max_staleness=2, version_key="version")
    sampler.consumer_version = 3
    buffer = ReplayBuffer(TensorStorage(5), sampler, batch_size=3)
    buffer.extend(stamped)
    assert buffer.sample()[1]["staleness"].tolist() == [2, 2, 2]


def test_e18_uuids_are_texts_and_all_different() -> None:
    version = PolicyVersion(version_type="uuid")
    for _ in range(3):
        version.increment_version()
    assert len(set(version.history)) == 4
    assert version.version == version.history[-1]
    assert isinstance(version.version, str)
    with pytest.raises(ValueError, match="Use version_type='int'"):
        version.stamp({"x": torch.zeros(1)})
    with pytest.raises(ValueError, match="version_type='float' must be 'int' or 'uuid'"):
        PolicyVersion(version_type="float")  # type: ignore[arg-type]
