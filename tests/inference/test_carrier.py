"""What goes to a device and comes back is the same bit by bit; here the device is the CPU behind the same code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sf.inference.actors import NO_MEMORY
from sf.inference.carrier import OnHost, ToDevice
from sf.nets.device import CPU
from sf.nets.outputs import CollectInfo
from sf.policy import PolicyStep

ACTIONS = {
    "choice": torch.tensor([0, 2**53 + 1, -(2**62) - 1]),
    "choices": torch.tensor([[1, 2], [2**40, 3], [5, -6]]),
    "numbers": torch.tensor([[0.1, np.nan], [np.inf, -0.0], [1e-40, 3.0]]),
}


@pytest.mark.parametrize("rows", [3, 1, 0])
@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("kind", ACTIONS)
def test_answers_keep_every_bit(kind: str, has_memory: bool, rows: int) -> None:
    carrier = ToDevice(CPU)
    for scale in (1.0, 3.0):  # the second answers take the memory of the first
        log_probs, values = -torch.rand(rows) * scale, torch.randn(2, rows).t()[:, 1]
        memory = torch.randn(rows, 4) if has_memory else ()
        step = PolicyStep(ACTIONS[kind][:rows], memory, CollectInfo(log_probs, values, torch.zeros(rows, 2)))
        found, right = carrier.bring(step), OnHost().bring(step)
        assert found.heads == right.heads == {}
        for array, expected in zip(found[:4], right[:4], strict=True):
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
            assert array.tobytes() == expected.tobytes()
        assert has_memory or found.memory is NO_MEMORY


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "bool"])
def test_rows_of_several_groups_are_one_batch(dtype: str) -> None:
    parts = [np.arange(6 * rows).reshape(rows, 2, 3).astype(dtype) for rows in (2, 0, 1)]
    for given in (parts, parts[:1]):
        taken = ToDevice(CPU).take(given)
        assert taken.numpy().dtype == dtype
        np.testing.assert_array_equal(taken.numpy(), np.concatenate(given))
