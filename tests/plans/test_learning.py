"""What policies learn from: minibatches, targets, statistics and steps that are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sf.plans import LocalIterator, SampleBatch, TrainOneStep, WorkerSet
from tests.helpers.planned import TEN_STEPS, CountingPolicy

of = LocalIterator.of


class Recording(CountingPolicy):
    """Keeps what it learns from."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[SampleBatch] = []

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:
        self.seen.append(samples.copy())
        return super().learn_on_batch(samples)


@pytest.mark.parametrize(
    ("fragment", "size", "wanted"), [(20, 10, [10, 10]), (25, 12, [5, 10, 10]), (20, 4, [10, 10]), (40, 25, [20, 20])]
)
def test_minibatches_of_a_recurrent_policy_are_whole_sequences(fragment: int, size: int, wanted: list[int]) -> None:
    with WorkerSet(Recording, {"env": TEN_STEPS, "rollout_fragment_length": fragment, "seed": 1}) as workers:
        batch = workers.local_worker().sample()
        of([batch]).for_each(TrainOneStep(workers, num_sgd_iter=6, sgd_minibatch_size=size)).take(1)
        seen = workers.local_worker().get_policy().seen
    assert sorted(part.count for part in seen) == sorted(6 * wanted)
    for part in seen:
        for sequence in part.split_by_episode():
            whole = batch["t"][batch["eps_id"] == sequence["eps_id"][0]]
            assert sequence["t"].tolist() == whole.tolist()
    passes = [seen[start : start + len(wanted)] for start in range(0, len(seen), len(wanted))]
    orders = {tuple(part["eps_id"][0] for part in one) for one in passes}
    assert len(orders) > 1, "each pass has an order of its own"
    rows = np.sort(np.concatenate([part["obs"][:, 0] for part in seen]))
    assert rows.tolist() == np.sort(np.repeat(batch["obs"][:, 0], 6)).tolist(), "each row once in each pass"
