"""Batches of columns: row D14."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from sf.errors import UsageError
from sf.plans import LocalReplayBuffer, MultiAgentBatch, SampleBatch


def test_d14_concat_slice_rows_columns_and_count() -> None:
    first, second = SampleBatch({"a": [1, 2], "b": [4, 5]}), SampleBatch({"a": [3, 4, 5], "b": [6, 7, 8]})
    both = SampleBatch.concat_samples([first, second])
    assert both["a"].tolist() == [1, 2, 3, 4, 5]
    assert first.concat(second)["b"].tolist() == [4, 5, 6, 7, 8]
    assert both.count == both.env_steps() == both.agent_steps() == 5
    assert both.slice(1, 3)["a"].tolist() == both[1:3]["a"].tolist() == [2, 3]
    assert list(first.rows()) == [{"a": 1, "b": 4}, {"a": 2, "b": 5}]
    assert [column.tolist() for column in both.columns(["b", "a"])] == [[4, 5, 6, 7, 8], [1, 2, 3, 4, 5]]
    assert [part["a"].tolist() for part in both.timeslices(2)] == [[1, 2], [3, 4], [5]]


def test_d14_columns_are_given_as_dicts_take_them() -> None:
    batch = SampleBatch({"obs": [1.0, 2.0]}, rewards=[3.0, 4.0])
    assert {name: column.tolist() for name, column in batch.items()} == {"obs": [1.0, 2.0], "rewards": [3.0, 4.0]}


def test_d14_shuffle_keeps_rows_together() -> None:
    batch = SampleBatch({"a": np.arange(50), "b": np.arange(50) * 2}).shuffle(np.random.default_rng(1))
    assert batch["a"].tolist() != list(range(50))
    assert sorted(batch["a"].tolist()) == list(range(50))
    assert (batch["b"] == 2 * batch["a"]).all()


def test_d14_split_by_episode() -> None:
    batch = SampleBatch({"eps_id": [7, 7, 8, 7], "t": [0, 1, 0, 2]})
    assert [part["t"].tolist() for part in batch.split_by_episode()] == [[0, 1], [0], [2]]


def test_d14_four_agents_per_environment_make_four_agent_steps() -> None:
    per_policy = {"even": SampleBatch({"a": np.zeros(20)}), "odd": SampleBatch({"a": np.zeros(20)})}
    batch = MultiAgentBatch(per_policy, 10)
    assert (batch.env_steps(), batch.count, batch.agent_steps()) == (10, 10, 40)
    both = MultiAgentBatch.concat_samples([batch, batch])
    assert (both.env_steps(), both.agent_steps(), both.policy_batches["odd"].count) == (20, 80, 40)


def test_columns_of_different_lengths_or_names_are_refused() -> None:
    with pytest.raises(UsageError, match=r"one length, but these have \{'a': 1, 'b': 2\}"):
        SampleBatch({"a": [1], "b": [1, 2]})
    with pytest.raises(UsageError, match="Column 'b' has 2 rows, but the batch has 1"):
        SampleBatch({"a": [1]})["b"] = np.zeros(2)
    with pytest.raises(UsageError, match=r"\['b'\] are in some only"):
        SampleBatch.concat_samples([SampleBatch({"a": [1]}), SampleBatch({"a": [1], "b": [1]})])
    with pytest.raises(UsageError, match="one batch at least"):
        SampleBatch.concat_samples([])


def test_d14_the_length_of_a_batch_is_its_rows() -> None:
    batch = SampleBatch({"a": [1, 2, 3], "b": [4, 5, 6]})
    assert len(batch) == len(batch.copy()) == 3
    assert len(SampleBatch()) == 0
    assert list(pickle.loads(pickle.dumps(batch))["b"]) == [4, 5, 6]
    assert list({**batch}) == ["a", "b"]
    empty = SampleBatch({"a": []})
    with pytest.raises(UsageError, match="Column 'b' has 2 rows, but the batch has 0"):
        empty["b"] = np.zeros(2)


def test_d14_slices_are_those_of_lists_without_gaps() -> None:
    batch = SampleBatch({"a": [1, 2, 3, 4]})
    assert [list(batch[part]["a"]) for part in (slice(1, 3), slice(-2, None), slice(2, 99))] == [[2, 3], [3, 4], [3, 4]]
    with pytest.raises(UsageError, match=r"batch\[None:None:2\] leaves rows out\. Use batch\[start:stop\]"):
        batch[::2]


def test_d21_empty_batches_are_passed_over() -> None:
    full, empty = SampleBatch({"a": [1, 2]}), SampleBatch()
    assert list(SampleBatch.concat_samples([empty, full, empty, full])["a"]) == [1, 2, 1, 2]
    assert SampleBatch.concat_samples([empty, empty]).count == 0
    together = MultiAgentBatch.concat_samples([MultiAgentBatch({"p": full}, 2), MultiAgentBatch({"p": empty}, 0)])
    assert list(together.policy_batches["p"]["a"]) == [1, 2]


def test_texts_and_numbers_do_not_become_one_column() -> None:
    texts, numbers = SampleBatch({"a": ["x", "longer"]}), SampleBatch({"a": [1.5]})
    assert texts.concat(SampleBatch({"a": ["even longer"]}))["a"].tolist() == ["x", "longer", "even longer"]
    with pytest.raises(UsageError, match="Column 'a' has texts in some batches and numbers in others"):
        texts.concat(numbers)
    buffer = LocalReplayBuffer(learning_starts=0)
    buffer.add_batch(texts)
    buffer.add_batch(SampleBatch({"a": ["even longer"]}))
    assert set(buffer.replay()["a"]) == {"x", "longer", "even longer"}
    with pytest.raises(UsageError, match="Column 'a' has texts in some batches and numbers in others"):
        buffer.add_batch(numbers)
