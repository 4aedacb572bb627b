"""Parts of a batch for one step of the optimizer each.

A learner deals trajectories of one length, [T, B]. Batches of plans are rows, in sequences of any length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sf.plans.sample_batch import SampleBatch
from sf.shared.arena import Array


def minibatches(batch: SampleBatch, size: int, random: np.random.Generator) -> Iterator[SampleBatch]:
    """Deals the rows of a batch anew; the batch itself where it is no larger.

    With recurrent states, whole sequences are dealt, so that gradients go through time. Then a part has fewer rows than
    asked for, or one sequence that is longer.

    Args:
        batch: of one policy.
        size: rows of a part; 0 for all.
        random: numbers for the order.
    """
    if not size or size >= batch.count:
        yield batch
    elif "state_in_0" not in batch:
        for rows in np.split(random.permutation(batch.count), range(size, batch.count, size)):
            yield batch.take(rows)
    else:
        starts = sequence_starts(batch)
        sequences = np.split(np.arange(batch.count), starts[1:])
        for some in _packed([sequences[index] for index in random.permutation(len(sequences))], size):
            yield batch.take(np.concatenate(some))


def sequence_starts(batch: Mapping[str, Any]) -> Array:
    """[n] the first rows of the parts in which each row follows the one before it.

    Args:
        batch: with ``eps_id``, ``unroll_id`` and ``t``, as arrays or tensors in the memory of the host.
    """
    episodes, fragments, steps = (np.asarray(batch[name]) for name in ("eps_id", "unroll_id", "t"))
    follows = (episodes[1:] == episodes[:-1]) & (fragments[1:] == fragments[:-1]) & (steps[1:] == steps[:-1] + 1)
    return np.concatenate([[0], np.flatnonzero(~follows) + 1])


def _packed(sequences: list[Array], size: int) -> Iterator[list[Array]]:
    """One after the other, as many together as have no more rows than `size`."""
    rows = 0
    some: list[Array] = []
    for sequence in sequences:
        if some and rows + len(sequence) > size:
            yield some
            rows, some = 0, []
        rows += len(sequence)
        some.append(sequence)
    yield some
