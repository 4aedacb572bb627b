"""Actions in tensors are those of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sf.envs.actions import vector_action_converter
from sf.errors import EnvError
from sf.spaces import ActionBounds
from sf.tensors.actions import tensor_converter

CPU = torch.device("cpu")
SPACES: dict[str, Any] = {
    "choice": spaces.Discrete(4),
    "from one": spaces.Discrete(3, start=1),
    "choices": spaces.MultiDiscrete([3, 4]),
    "choices from": spaces.MultiDiscrete([3, 4], start=[1, -2]),
    "switches": spaces.MultiBinary(3),
    "numbers": spaces.Box(-1.0, 1.0, (2,)),
    "bounds": spaces.Box(np.array([[-2.0, 0.0]], np.float32), np.array([[1.0, 5.0]], np.float32)),
    "double": spaces.Box(-3.0, 1.0, (3,), np.float64),
}


@pytest.mark.parametrize("bounds", ["scale", "clip", "tanh"])
@pytest.mark.parametrize("name", SPACES)
def test_actions_in_tensors_are_those_of_arrays(name: str, bounds: ActionBounds) -> None:
    space, random = SPACES[name], np.random.default_rng(0)
    stored: Any
    if isinstance(space, spaces.Box):
        stored = random.normal(size=(16, int(np.prod(space.shape)))).astype(np.float32) * 2
    else:
        stored = random.integers(0, 2, (16, *space.shape), np.int64)
    right = vector_action_converter(space, bounds)(stored)
    drawn = torch.from_numpy(stored)
    converted = tensor_converter(space, bounds, CPU)(drawn)
    assert converted.data_ptr() != drawn.data_ptr(), "the policy writes its actions to the same place again"
    found = converted.numpy()
    assert (found.dtype, found.shape) == (right.dtype, right.shape)
    np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-6)


def test_a_nest_of_spaces_is_refused() -> None:
    with pytest.raises(EnvError, match="expected a Box, a Discrete"):
        tensor_converter(spaces.Dict({"a": spaces.Discrete(2)}), "scale", CPU)
