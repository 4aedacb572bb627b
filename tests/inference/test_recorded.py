"""Recording forward passes against those of the network; here a recording computes anew, on CUDA it is a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sf.inference.recorded import RecordedAct, rounded_up
from sf.nets.actor_critic import ActorCritic
from sf.nets.fast.recorded import Anew
from sf.shared.arena import Array
from tests.helpers.networks import make_policy
from tests.nets.test_acting import CASES, change_weights


class Counted(Anew):
    """Counts what is recorded."""

    def __init__(self) -> None:
        self.count = 0

    def capture(self, compute: Callable[[], None]) -> Callable[[], None]:
        self.count += 1
        return super().capture(compute)


def observed(network: ActorCritic, rows: int, random: np.random.Generator) -> dict[str, Array]:
    leaves = network.info.observations
    return {key: random.normal(size=(rows, *leaf.shape)).astype(leaf.dtype) for key, leaf in leaves.items()}


@pytest.mark.parametrize("name", CASES)
def test_recorded_passes_act_as_the_network_does(name: str) -> None:
    """Rows of several groups, in numbers that grow and shrink, while the weights change in place."""
    action, settings = CASES[name]
    network: Any = make_policy(action, **settings).requires_grad_(False)
    act = RecordedAct(network, Counted())
    random, generator, other = np.random.default_rng(0), torch.Generator(), torch.Generator()
    generator.manual_seed(1)
    other.manual_seed(1)
    for sizes in ([3], [3, 0, 14], [1], [100, 30], [3], [64], [17, 1]):
        parts = [observed(network, rows, random) for rows in sizes]
        memory = [random.normal(size=(rows, network.state_size)).astype(np.float32) for rows in sizes]
        together = {key: torch.from_numpy(np.concatenate([part[key] for part in parts])) for key in parts[0]}
        right = network.act(together, torch.from_numpy(np.concatenate(memory)), other)
        by_leaf = {key: [part[key] for part in parts] for key in parts[0]}
        found = act(by_leaf, memory if network.state_size else (), generator)
        np.testing.assert_array_equal(found.actions, right.action.numpy())
        assert found.actions.dtype == right.action.numpy().dtype
        np.testing.assert_allclose(found.log_probs, right.info.log_probability.numpy(), atol=1e-5)
        np.testing.assert_allclose(found.values, right.info.value_prediction.numpy(), atol=1e-4)
        if network.state_size:
            np.testing.assert_allclose(found.memory, right.state.numpy(), atol=1e-5)
        change_weights(network)


def test_few_numbers_of_rows_are_recorded() -> None:
    network: Any = make_policy(CASES["choice"][0]).requires_grad_(False)
    recorder, random = Counted(), np.random.default_rng(0)
    act = RecordedAct(network, recorder)
    for _ in range(2):
        for rows in range(1, 65):
            act({key: [value] for key, value in observed(network, rows, random).items()}, (), torch.Generator())
    assert recorder.count == len({rounded_up(rows) for rows in range(1, 65)}) == 32


def test_rows_are_rounded_up_by_an_eighth_at_most() -> None:
    for rows in range(1, 5000):
        assert rows <= rounded_up(rows) <= max(rows + 1, rows * 1.125)
        assert rounded_up(rounded_up(rows)) == rounded_up(rows)
    assert rounded_up(0) == 1
