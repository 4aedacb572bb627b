"""Specs of policies, spaces and time steps: what comes from gymnasium fits them and comes back."""

from __future__ import annotations

import json
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sf.policy import (
    BoundedTensorSpec,
    PolicyStep,
    TensorSpec,
    TimeStep,
    Trajectory,
    spec_of_action_space,
    spec_of_space,
    time_step_spec,
    to_arrays,
    to_tensors,
)
from sf.policy.fitting import Fit
from sf.policy.leaf_distributions import SpreadOut, UniformInteger
from sf.policy.nests import check_structure, leaves, map_leaves
from sf.policy.specs import check_tensors, spec_from_json
from tests.helpers.policies import OBSERVATION, Remembering
from tests.helpers.spaces import SPACES


def test_specs_of_actions_have_the_names_of_their_parts_with_and_without_bounds() -> None:
    free, bounded = gymnasium.spaces.Box(-np.inf, np.inf, (3,)), gymnasium.spaces.Discrete(4, start=2)
    assert spec_of_action_space(gymnasium.spaces.Dict({"move": free, "hand": gymnasium.spaces.Tuple([bounded])})) == {
        "move": TensorSpec((3,), torch.float32, "move"),
        "hand": (BoundedTensorSpec((), torch.int64, "hand/0", 2, 5),),
    }
    assert spec_of_action_space(free) == TensorSpec((3,), torch.float32)


def test_b23_properties() -> None:
    policy = Remembering()
    number = TensorSpec((), torch.float32)
    assert policy.policy_step_spec == PolicyStep(number, number, ())
    step_type, reward, discount, observation = policy.time_step_spec
    assert policy.trajectory_spec == policy.collect_data_spec
    assert policy.trajectory_spec == Trajectory(step_type, observation, number, (), step_type, reward, discount)


@given(space=SPACES, seed=st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
def test_b31_an_element_of_a_space_fits_its_spec_and_comes_back(space: Any, seed: int) -> None:
    space.seed(seed)
    for specs in (spec_of_space(space), spec_of_action_space(space)):
        element = space.sample()
        tensors = to_tensors(element, specs)
        assert check_tensors(tensors, specs, "sample") == ()
        for tensor, spec in zip(leaves(tensors), leaves(specs), strict=True):
            if isinstance(spec, BoundedTensorSpec):
                low, high = spec.limits
                assert ((tensor >= low) & (tensor <= high)).all()
        assert _contains(space, to_arrays(tensors))


@given(space=SPACES, other=SPACES, seed=st.integers(0, 1000), num=st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_the_prepared_checks_accept_what_the_checks_with_words_accept(
    space: Any, other: Any, seed: int, num: int
) -> None:
    specs = spec_of_space(space)
    fit = Fit(specs)
    for given_space in (space, other):
        given_space.seed(seed)
        tensors = map_leaves(
            lambda leaf: torch.stack([leaf] * num) if num else leaf[None][:0],
            to_tensors(given_space.sample(), spec_of_space(given_space)),
        )
        try:
            check_structure(tensors, specs, "sample")
            expected = check_tensors(tensors, specs, "sample")
        except (TypeError, ValueError):
            assert fit.outer_shape(tensors) is None
        else:
            assert fit.outer_shape(tensors) == expected
            found = fit.flatten(tensors)
            assert found is not None
            assert all(a is b for a, b in zip(leaves(tensors), leaves(fit.pack(found)), strict=True))


def _contains(space: Any, element: Any) -> bool:
    """`Space.contains`, with arrays of no axes as the integers that Discrete wants, and MultiBinary in its own type."""
    if isinstance(space, gymnasium.spaces.Dict):
        return all(_contains(part, element[key]) for key, part in space.spaces.items())
    if isinstance(space, gymnasium.spaces.Tuple):
        return all(_contains(*pair) for pair in zip(space.spaces, element, strict=True))
    return bool(space.contains(element[()] if isinstance(space, gymnasium.spaces.Discrete) else element))


def test_b31_table_of_spaces() -> None:
    discrete = spec_of_space(gymnasium.spaces.Discrete(3, start=2))
    assert discrete == BoundedTensorSpec((), torch.int64, None, 2, 4)
    assert spec_of_space(gymnasium.spaces.MultiDiscrete([2, 3])) == BoundedTensorSpec(
        (2,), torch.int64, None, 0, [1, 2]
    )
    box = spec_of_space(gymnasium.spaces.Box(-1.0, np.inf, (2,)))
    assert (box.minimum.tolist(), box.maximum.tolist()) == ([-1.0] * 2, [np.inf] * 2)
    assert type(spec_of_space(gymnasium.spaces.Box(-np.inf, np.inf, (2,)))) is TensorSpec
    assert spec_of_space(gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)).maximum.tolist() == [[255, 255], [255, 255]]


def test_time_steps_of_gymnasium() -> None:
    first = TimeStep.first(torch.zeros(2))
    assert (first.step_type.item(), first.reward.item(), first.discount.item()) == (0, 0.0, 1.0)
    for flags, expected in {
        (False, False): (1, 1.0),
        (True, False): (2, 0.0),
        (False, True): (2, 1.0),
        (True, True): (2, 0.0),
    }.items():
        step = TimeStep.after(torch.zeros(2), 1.5, *flags)
        assert (step.step_type.item(), step.discount.item(), step.reward.item()) == (*expected, 1.5)
    batch = TimeStep.after(torch.zeros(2, 2), np.ones(2), np.array([True, False]), np.array([False, False]))
    assert (batch.step_type.tolist(), batch.discount.tolist()) == ([2, 1], [0.0, 1.0])
    assert check_tensors(batch, time_step_spec(OBSERVATION), "time_step") == (2,)


def test_policy_step_type_is_a_named_tuple() -> None:
    assert PolicyStep(1) == (1, (), ())


@given(space=SPACES)
@settings(deadline=None)
def test_specs_come_back_from_json(space: Any) -> None:
    for spec in leaves(spec_of_space(space)):
        assert spec_from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_limits_of_a_picture_are_saved_as_one_number() -> None:
    spec = spec_of_space(gymnasium.spaces.Box(0, 255, (480, 640, 3), np.uint8))
    text = json.dumps(spec.to_json())
    assert len(text) < 200
    assert spec_from_json(json.loads(text)) == spec


@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (2.0, math.inf), (-math.inf, 2.0), (-math.inf, math.inf)])
def test_density_of_a_spread_out_number_is_one_in_all(low: float, high: float) -> None:
    """Integrated numerically, and 0 outside of the limits."""
    distribution = SpreadOut(torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64))
    x = torch.linspace(-40, 40, 800_001, dtype=torch.float64)
    density = distribution.log_prob(x).exp()
    assert torch.trapezoid(density, x).item() == pytest.approx(1.0, abs=1e-3)
    assert not density[(x < low) | (x > high)].any()
    samples = distribution.sample((20_000,))
    assert ((samples >= low) & (samples <= high)).all()
    assert samples.mean().item() == pytest.approx(torch.trapezoid(x * density, x).item(), abs=0.05)


def test_integers_are_equally_likely_up_to_both_bounds() -> None:
    log_probs = UniformInteger(torch.tensor(-1), torch.tensor(2)).log_prob(torch.tensor([-2, -1, 2, 3]))
    assert log_probs.tolist() == pytest.approx([-math.inf, -math.log(4), -math.log(4), -math.inf])


def test_bounds_of_a_matrix_come_back_in_its_shape() -> None:
    spec = BoundedTensorSpec((2, 2), torch.float32, "x", np.array([[0.0, 1.0], [2.0, 3.0]]), 9.0)
    again = spec_from_json(json.loads(json.dumps(spec.to_json())))
    assert isinstance(again, BoundedTensorSpec)
    assert np.array_equal(again.minimum, spec.minimum)
    assert again.minimum.shape == (2, 2)
