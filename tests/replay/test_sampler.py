"""`StalenessAwareSampler`: rows E1 to E17 and E21 of the contract."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sf.replay import ListStorage, NothingToDraw, ReplayBuffer, StalenessAwareSampler, TensorStorage
from sf.replay.sampler import draw

LEAST_P = 0.001


def stored(versions: Any, max_size: int = 1000, key: str = "policy_version") -> TensorStorage:
    storage = TensorStorage(max_size)
    versions = torch.as_tensor(versions)
    storage.write(0, {key: versions, "row": torch.arange(len(versions))}, len(versions))
    return storage


def seeded(sampler: StalenessAwareSampler, consumer_version: int) -> StalenessAwareSampler:
    sampler.consumer_version = consumer_version
    sampler.generator = torch.Generator().manual_seed(0)
    return sampler


def counts(sampler: StalenessAwareSampler, storage: TensorStorage, num_draws: int, batch_size: int = 1) -> Any:
    """How often each row was in a batch."""
    drawn = [sampler.sample(storage, batch_size)[0] for _ in range(num_draws)]
    return np.bincount(torch.cat(drawn).numpy(), minlength=len(storage))


def chi_square_p(found: Any, probabilities: Any) -> float:
    """Probability that the counts come from these probabilities, by the transform of Wilson and Hilferty."""
    expected = found.sum() * np.asarray(probabilities)
    statistic, freedom = float(((found - expected) ** 2 / expected).sum()), len(found) - 1
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def cases(oracles: dict[str, Any], row: str) -> list[tuple[Any, Any]]:
    return [(case["inputs"], case["expected"]) for case in oracles[row]["cases"]]


def test_e1_staleness_is_consumer_version_minus_policy_version(oracles: dict[str, Any]) -> None:
    for inputs, expected in cases(oracles, "E1"):
        sampler, storage = StalenessAwareSampler(), stored(inputs["policy_version"])
        sampler.consumer_version = inputs["consumer_version"]
        index, facts = sampler.sample(storage, len(storage))
        assert facts["staleness"].tolist() == [expected["staleness"][i] for i in index]
        assert facts["staleness"].dtype == torch.int64


def test_e2_only_rows_within_the_gate_are_drawn(oracles: dict[str, Any]) -> None:
    for inputs, expected in cases(oracles, "E2"):
        sampler = seeded(StalenessAwareSampler(inputs["max_staleness"]), inputs["consumer_version"])
        found = counts(sampler, stored(inputs["policy_version"]), 400)
        assert (found > 0).tolist() == expected["eligible"]


@pytest.mark.more
def test_e3_weights_are_normalized_over_the_survivors(oracles: dict[str, Any]) -> None:
    (inputs, expected), (groups, share) = cases(oracles, "E3")
    sampler = seeded(StalenessAwareSampler(), 9)
    weights = sampler._weights(torch.tensor(inputs["staleness"]))
    assert weights.tolist() == pytest.approx(expected["weights"], abs=1e-6)
    assert (weights / weights.sum()).tolist() == pytest.approx(expected["probabilities"], abs=1e-6)
    found = counts(sampler, stored([9 - s for s in inputs["staleness"]]), 20_000)
    assert chi_square_p(found, expected["probabilities"]) > LEAST_P
    gated = seeded(StalenessAwareSampler(max_staleness=4), 9)
    assert chi_square_p(counts(gated, stored([9, 8, 5, 0]), 4000)[:3], [1 / 1.7, 0.5 / 1.7, 0.2 / 1.7]) > LEAST_P
    sampler = seeded(StalenessAwareSampler(), 10)
    versions = [10 - s for s, number in groups["staleness_groups"] for _ in range(number)]
    found = counts(sampler, stored(versions), 4000)
    of_first = share["share_of_first_group_in_single_draws"]
    assert chi_square_p(np.array([found[:100].sum(), found[100:].sum()]), [of_first, 1 - of_first]) > LEAST_P


@pytest.mark.parametrize("num_rows", [1, 3, 7, 100])
def test_e4_a_batch_as_large_as_the_survivors_is_a_permutation(num_rows: int) -> None:
    sampler = seeded(StalenessAwareSampler(max_staleness=50), 100)
    storage = stored([*range(101 - num_rows, 101), 0, 1, 2])  # three are too old
    survivors = min(num_rows, 51)
    index, _ = sampler.sample(storage, survivors)
    assert sorted(index.tolist()) == list(range(num_rows - survivors, num_rows))


def test_e4_a_larger_batch_is_drawn_with_replacement() -> None:
    sampler = seeded(StalenessAwareSampler(max_staleness=2), 5)
    index, facts = sampler.sample(stored([3, 4, 5, 0]), 8)
    assert len(index) == len(facts["staleness"]) == 8
    assert set(index.tolist()) <= {0, 1, 2}


def inclusion(weights: list[float], num: int) -> list[float]:
    """Probability of each row to be among successive draws without replacement, by all orders of drawing."""
    found = [0.0] * len(weights)
    for order in itertools.permutations(range(len(weights)), num):
        probability, left = 1.0, sum(weights)
        for row in order:
            probability *= weights[row] / left
            left -= weights[row]
        for row in order:
            found[row] += probability
    return found


@pytest.mark.more
def test_e5_inclusion_probabilities_of_batches(oracles: dict[str, Any]) -> None:
    ((inputs, expected),) = cases(oracles, "E5")
    staleness, size = inputs["staleness"], inputs["batch_size"]
    assert inclusion([1 / (s + 1) for s in staleness], size) == pytest.approx(expected["inclusion_probability"])
    sampler = seeded(StalenessAwareSampler(), 9)
    num_draws = 20_000
    found = counts(sampler, stored([9 - s for s in staleness]), num_draws, size) / num_draws
    for share, probability in zip(found, expected["inclusion_probability"], strict=True):
        assert abs(share - probability) < 4 * math.sqrt(probability * (1 - probability) / num_draws)


@pytest.mark.more
@pytest.mark.parametrize(
    "weights",
    [
        [8.0, 4.0, 2.0, 1.0, 1.0, 1.0],  # passes over repeats
        [1e6, 1.0, 1.0, 2.0, 2.0, 1.0],  # repeats nearly always, so the rest is a race
        [0.0, 1.0, 2.0, 3.0, 0.0, 4.0],
    ],
)
def test_e5_every_way_of_drawing_has_the_distribution_of_successive_draws(weights: list[float]) -> None:
    generator, num_draws, num = torch.Generator().manual_seed(1), 4000, 3
    drawn = [draw(torch.tensor(weights), num, generator) for _ in range(num_draws)]
    assert all(len(set(index.tolist())) == num for index in drawn)
    found = np.bincount(torch.cat(drawn).numpy(), minlength=len(weights)) / num_draws
    for share, probability in zip(found, inclusion(weights, num), strict=True):
        assert abs(share - probability) <= 4 * math.sqrt(probability * (1 - probability) / num_draws) + 1e-9
    firsts = np.bincount([int(index[0]) for index in drawn], minlength=len(weights))
    likely = np.array(weights) > 0
    assert firsts[~likely].sum() == 0
    assert chi_square_p(firsts[likely], np.array(weights)[likely] / sum(weights)) > LEAST_P


def test_e6_index_and_staleness_in_the_same_order() -> None:
    versions = torch.randint(0, 40, (300,), generator=torch.Generator().manual_seed(3))
    sampler = seeded(StalenessAwareSampler(max_staleness=30), 40)
    index, facts = sampler.sample(stored(versions), 64)
    assert index.dtype == torch.int64
    assert list(facts) == ["staleness"]
    assert torch.equal(facts["staleness"], 40 - versions[index])


def test_e7_own_weight_function_gets_integers_and_decides() -> None:
    seen: list[Tensor] = []

    def only_two(staleness: Tensor) -> Tensor:
        seen.append(staleness)
        return (staleness == 2).float()

    sampler = seeded(StalenessAwareSampler(5, only_two), 10)
    found = counts(sampler, stored([10, 9, 8, 8, 7, 0]), 100, batch_size=2)
    assert found[2] == found[3] == 100
    assert found.sum() == 200
    assert seen[0].dtype == torch.int64
    assert seen[0].tolist() == [0, 1, 2, 2, 3], "of the survivors"
    index, _ = sampler.sample(stored([10, 8, 8]), 3)
    assert set(index.tolist()) <= {1, 2}, "with replacement, because only two rows can be drawn"


@pytest.mark.parametrize(
    ("weigh", "sentence"),
    [
        (lambda s: torch.where(s == 1, torch.nan, 1.0), r"must be finite, not negative, and not zero everywhere"),
        (lambda s: torch.where(s == 1, torch.inf, 1.0), "must be finite"),
        (lambda s: s - 1.0, "weights from -1.0 to 1.0"),
        (lambda s: torch.zeros(len(s)), "weights from 0.0 to 0.0"),
        (lambda s: torch.ones(2), r"weights of shape \[2\] for 3 entries\. Return one weight for each"),
        (lambda s: torch.tensor(1.0), r"weights of shape \[\] for 3 entries"),
    ],
)
def test_e7_weights_with_which_nothing_can_be_drawn_are_refused(
    weigh: Callable[[Tensor], Tensor], sentence: str
) -> None:
    sampler = seeded(StalenessAwareSampler(-1, weigh), 2)
    with pytest.raises(ValueError, match=sentence):
        sampler.sample(stored([2, 1, 0]), 2)


def test_e8_nested_version_key() -> None:
    storage = TensorStorage(10)
    storage.write(0, {"meta": {"ver": torch.tensor([1, 4])}, "x": torch.zeros(2)}, 2)
    sampler = seeded(StalenessAwareSampler(max_staleness=1, version_key=("meta", "ver")), 5)
    index, facts = sampler.sample(storage, 1)
    assert index.tolist() == facts["staleness"].tolist() == [1]


@pytest.mark.parametrize("key", ["policy_version", ("meta", "ver"), ("x", "y")])
def test_e9_missing_version_names_the_key_and_the_way_out(key: Any) -> None:
    storage = stored([1, 2], key="x")
    with pytest.raises(KeyError, match=rf"{'policy_version' if key == 'policy_version' else 'y|ver'}.*stamp\(rows\)"):
        StalenessAwareSampler(version_key=key).sample(storage, 1)


def test_e10_everything_is_too_old() -> None:
    sampler = seeded(StalenessAwareSampler(max_staleness=2), 100)
    with pytest.raises(NothingToDraw, match=r"All 5 entries .*max_staleness=2 at consumer version 100; .* 100"):
        sampler.sample(stored([0] * 5), 1)


@pytest.mark.parametrize("storage", [TensorStorage(5), ListStorage(5)])
def test_e11_empty_storage(storage: Any) -> None:
    with pytest.raises(NothingToDraw, match="The storage is empty"):
        StalenessAwareSampler().sample(storage, 1)


def test_e12_consumer_version_belongs_to_the_loop() -> None:
    sampler = StalenessAwareSampler()
    assert sampler.consumer_version == 0
    sampler.increment_consumer_version()
    assert sampler.consumer_version == 1
    sampler.consumer_version = 42
    assert sampler.consumer_version == 42
    sampler.consumer_version = torch.tensor(7)  # type: ignore[assignment]
    assert type(sampler.consumer_version) is int


def test_e13_max_staleness_changes_the_next_draw() -> None:
    sampler, storage = seeded(StalenessAwareSampler(), 10), stored([0, 10])
    assert sampler.max_staleness == -1
    assert (counts(sampler, storage, 300) > 0).all()
    sampler.max_staleness = 5
    assert counts(sampler, storage, 50).tolist() == [0, 50]


def test_e14_nothing_is_kept_between_draws() -> None:
    sampler, storage = seeded(StalenessAwareSampler(max_staleness=10), 10), stored([0, 5])
    assert (counts(sampler, storage, 300) > 0).all()
    sampler.increment_consumer_version()
    assert counts(sampler, storage, 50).tolist() == [0, 50]
    sampler.add(0)
    sampler.extend(torch.tensor([0]))
    with pytest.warns(UserWarning, match="has no priorities"):
        sampler.update_priority(torch.tensor([0]), torch.tensor([1e9]))
    assert counts(sampler, storage, 50).tolist() == [0, 50]


def test_e15_state_in_memory_and_on_disk(tmp_path: Path) -> None:
    sampler = StalenessAwareSampler(7, lambda staleness: torch.ones(len(staleness)))
    sampler.consumer_version = 42
    assert sampler.state_dict() == {"consumer_version": 42, "max_staleness": 7}
    other = StalenessAwareSampler()
    other.load_state_dict({"consumer_version": torch.tensor(42), "max_staleness": 7.0})
    assert other.state_dict() == sampler.state_dict()
    assert {type(value) for value in other.state_dict().values()} == {int}
    sampler.dumps(tmp_path / "new" / "sampler")
    third = StalenessAwareSampler()
    third.loads(tmp_path / "new" / "sampler")
    assert third.state_dict() == sampler.state_dict()
    buffer = ReplayBuffer(stored([1]), sampler)
    buffer.empty()
    assert sampler.consumer_version == 0
    assert sampler.max_staleness == 7


@pytest.mark.more
def test_e16_labels_from_the_future_count_as_fresh_and_are_told_once(oracles: dict[str, Any]) -> None:
    ((inputs, expected),) = cases(oracles, "E16")
    sampler = seeded(StalenessAwareSampler(max_staleness=0), inputs["consumer_version"])
    storage = stored(inputs["policy_version"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = counts(sampler, storage, 10_000)
        _, facts = sampler.sample(storage, 2)
    assert len(caught) == expected["warnings"]
    assert "1 entries have versions above the consumer version 4" in str(caught[0].message)
    assert chi_square_p(found, expected["probabilities"]) > LEAST_P
    assert facts["staleness"].tolist() == expected["staleness_used"]


def test_e17_only_rows_that_were_written_are_drawn() -> None:
    storage = stored([3] * 40, max_size=100)
    sampler = seeded(StalenessAwareSampler(), 3)
    assert counts(sampler, storage, 200, batch_size=50).argmax() < 40
    index, _ = sampler.sample(storage, 500)
    assert int(index.max()) < 40


def test_e17_list_and_tensor_storage_draw_the_same() -> None:
    rows = {"policy_version": torch.tensor([1, 2, 3, 3]), "x": torch.arange(8.0).view(4, 2)}
    drawn = []
    for storage in (TensorStorage(10), ListStorage(10)):
        buffer = ReplayBuffer(storage, StalenessAwareSampler(), 3, torch.Generator().manual_seed(5))
        buffer.extend(rows)
        buffer.sampler.consumer_version = 3  # type: ignore[attr-defined]
        drawn.append(buffer.sample())
    (rows_of_tensors, facts_of_tensors), (rows_of_list, facts_of_list) = drawn
    assert torch.equal(facts_of_tensors["index"], facts_of_list["index"])
    assert torch.equal(rows_of_tensors["x"], rows_of_list["x"])
    assert torch.equal(rows_of_tensors["x"], rows["x"][facts_of_tensors["index"]])


def test_e17_further_batch_dimensions_are_flattened() -> None:
    storage = TensorStorage(10, batch_dims=2)
    versions = torch.tensor([[1, 2], [3, 4], [5, 6]])
    storage.write(0, {"policy_version": versions, "x": versions.unsqueeze(-1) * 10}, 3)
    sampler = seeded(StalenessAwareSampler(max_staleness=2), 6)
    index, facts = sampler.sample(storage, 3)
    assert sorted(index.tolist()) == [3, 4, 5]
    assert torch.equal(storage.read(index)["x"][:, 0], 10 * (6 - facts["staleness"]))


def test_e21_the_generator_of_the_buffer_is_used() -> None:
    storage = stored(torch.arange(500))
    drawn = []
    for seed in (1, 1, 2):
        buffer = ReplayBuffer(storage, StalenessAwareSampler(), 32, torch.Generator().manual_seed(seed))
        buffer.sampler.consumer_version = 500  # type: ignore[attr-defined]
        drawn.append(torch.cat([buffer.sample()[1]["index"] for _ in range(3)]))
        torch.rand(1)  # the generator of torch has nothing to do with it
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=0 draws nothing"):
        StalenessAwareSampler().sample(stored([0]), 0)


def test_an_entry_has_one_version() -> None:
    """Others were taken for entries of their own, whose rows hold nothing."""
    rows = {"obs": torch.ones(2, 3), "policy_version": torch.tensor([[1, 5], [2, 5]])}
    buffer = ReplayBuffer(TensorStorage(10), StalenessAwareSampler(), 4)
    buffer.extend(rows)
    with pytest.raises(ValueError, match=r"shape \[2, 2\], more than one version for each entry.*batch_dims=2"):
        buffer.sample()
    column = stored([[1], [5], [2]])
    assert counts(seeded(StalenessAwareSampler(), 5), column, 50).sum() == 50
