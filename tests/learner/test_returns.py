"""Advantages and value targets against slow loops in the notation of the papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sf.learner.returns import gae, values_after, vtrace

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())
SHAPES = [(1, 1), (2, 3), (17, 4), (32, 16)]


def column(numbers: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype).unsqueeze(1)


class Trajectories:
    """Random data of shape [T, B] in float64, with ends of both kinds."""

    def __init__(self, num_steps: int, num_trajectories: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        shape = (num_steps, num_trajectories)
        self.shape = shape
        self.rewards, self.values, self.final_values = (rng.normal(size=shape) for _ in range(3))
        self.bootstrap_values = rng.normal(size=num_trajectories)
        kind = rng.integers(0, 6, shape)
        self.terminated, self.truncated = kind == 0, kind == 1
        self.behavior_log_probs = rng.normal(-1, 0.5, shape)
        self.target_log_probs = rng.normal(-1, 0.5, shape)

    def next_value(self, t: int, b: int) -> float:
        if self.terminated[t, b]:
            return 0.0
        if self.truncated[t, b]:
            return float(self.final_values[t, b])
        return float(self.bootstrap_values[b] if t + 1 == self.shape[0] else self.values[t + 1, b])

    def tensors(self, *names: str) -> list[Tensor]:
        return [torch.from_numpy(getattr(self, name)) for name in names]

    def next_values(self) -> Tensor:
        return values_after(*self.tensors("values", "bootstrap_values", "final_values", "truncated"))


@pytest.mark.parametrize("case", ORACLES["C5"]["cases"], ids=["gae", "n-step"])
def test_c5_literals(case: Any) -> None:
    inputs = case["inputs"]
    values, dones = column(inputs["values"]), column(inputs["dones_after_action"], torch.bool)
    never = torch.zeros_like(dones)
    next_values = values_after(values, torch.tensor([inputs["next_value"]]), values, never)
    gae_lambda = inputs["gae_lambda"] if inputs["gae"] else 1.0
    advantages = gae(column(inputs["rewards"]), values, next_values, dones, never, inputs["gamma"], gae_lambda)
    assert advantages.flatten().tolist() == pytest.approx(case["expected"]["advantages"], abs=1e-6)
    assert (advantages + values).flatten().tolist() == pytest.approx(case["expected"]["returns"], abs=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_c5_gae_against_the_sum_of_the_paper(shape: tuple[int, int]) -> None:
    gamma, gae_lambda = 0.9, 0.7
    data = Trajectories(*shape)
    expected = np.zeros(shape)
    for t, b in np.ndindex(*shape):
        weight = 1.0
        for k in range(t, shape[0]):
            delta = data.rewards[k, b] + gamma * data.next_value(k, b) - data.values[k, b]
            expected[t, b] += weight * delta
            if data.terminated[k, b] or data.truncated[k, b]:
                break
            weight *= gamma * gae_lambda
    rewards, values, terminated, truncated = data.tensors("rewards", "values", "terminated", "truncated")
    advantages = gae(rewards, values, data.next_values(), terminated, truncated, gamma, gae_lambda)
    np.testing.assert_allclose(advantages.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_truncated_step_bootstraps_from_the_value_of_its_final_observation() -> None:
    values, final_values = column([1.0, 2.0]), column([7.0, torch.nan])
    truncated, never = column([True, False], torch.bool), column([False, False], torch.bool)
    next_values = values_after(values, torch.tensor([3.0]), final_values, truncated)
    assert next_values.flatten().tolist() == [7.0, 3.0]
    advantages = gae(column([1.0, 1.0]), values, next_values, never, truncated, 0.5, 1.0)
    assert advantages.flatten().tolist() == [1.0 + 0.5 * 7.0 - 1.0, 1.0 + 0.5 * 3.0 - 2.0]


def test_terminated_step_ignores_what_follows_even_nan() -> None:
    values, terminated = column([1.0, 2.0]), column([False, True], torch.bool)
    next_values = column([2.0, torch.nan])
    advantages = gae(column([1.0, 1.0]), values, next_values, terminated, ~terminated & False, 0.5, 1.0)
    assert advantages.flatten().tolist() == [1.0 + 0.5 * 2.0 - 1.0 + 0.5 * (1.0 - 2.0), 1.0 - 2.0]


def test_gae_leaves_its_inputs_alone() -> None:
    data = Trajectories(5, 2)
    rewards, values, terminated, truncated = data.tensors("rewards", "values", "terminated", "truncated")
    before = rewards.clone(), values.clone()
    gae(rewards, values, data.next_values(), terminated, truncated, 0.99, 0.95)
    assert torch.equal(rewards, before[0])
    assert torch.equal(values, before[1])


def test_shapes_are_checked() -> None:
    ones, flags = torch.ones(3, 2), torch.zeros(3, 2, dtype=torch.bool)
    with pytest.raises(AssertionError, match="expected tensors of one shape"):
        gae(ones, ones, torch.ones(3, 1), flags, flags, 0.99, 0.95)


def run_vtrace(data: Trajectories, gamma: float, rho_limit: float, c_limit: float) -> tuple[Tensor, Tensor]:
    behavior, target, rewards, values, terminated, truncated = data.tensors(
        "behavior_log_probs", "target_log_probs", "rewards", "values", "terminated", "truncated"
    )
    return vtrace(
        behavior, target, rewards, values, data.next_values(), terminated, truncated, gamma, rho_limit, c_limit
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("rho_limit", "c_limit"), [(1.0, 1.0), (2.0, 0.8)])
def test_vtrace_against_the_sum_of_the_paper(shape: tuple[int, int], rho_limit: float, c_limit: float) -> None:
    gamma = 0.9
    data = Trajectories(*shape)
    ratios = np.exp(data.target_log_probs - data.behavior_log_probs)
    rho, c = np.minimum(rho_limit, ratios), np.minimum(c_limit, ratios)
    vs, advantages = data.values.copy(), np.zeros(shape)
    for s, b in np.ndindex(*shape):
        weight = 1.0
        for t in range(s, shape[0]):
            delta = rho[t, b] * (data.rewards[t, b] + gamma * data.next_value(t, b) - data.values[t, b])
            vs[s, b] += weight * delta
            if data.terminated[t, b] or data.truncated[t, b]:
                break
            weight *= gamma * c[t, b]
    for s, b in np.ndindex(*shape):
        ended = data.terminated[s, b] or data.truncated[s, b]
        next_vs = data.next_value(s, b) if ended or s + 1 == shape[0] else vs[s + 1, b]
        advantages[s, b] = data.rewards[s, b] + gamma * next_vs - data.values[s, b]
    found_vs, found_advantages = run_vtrace(data, gamma, rho_limit, c_limit)
    np.testing.assert_allclose(found_vs.numpy(), vs, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found_advantages.numpy(), advantages, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_on_policy_vtrace_is_the_n_step_return(shape: tuple[int, int]) -> None:
    data = Trajectories(*shape)
    data.target_log_probs = data.behavior_log_probs
    rewards, values, terminated, truncated = data.tensors("rewards", "values", "terminated", "truncated")
    n_step = gae(rewards, values, data.next_values(), terminated, truncated, 0.9, 1.0)
    vs, advantages = run_vtrace(data, 0.9, 1.0, 1.0)
    torch.testing.assert_close(advantages, n_step)
    torch.testing.assert_close(vs, n_step + values)


@pytest.mark.parametrize("shape", [(6, 2)])
def test_vtrace_of_an_impossible_action_keeps_the_value(shape: tuple[int, int]) -> None:
    data = Trajectories(*shape)
    data.target_log_probs = np.full(shape, -1e4)
    vs, _ = run_vtrace(data, 0.9, 1.0, 1.0)
    torch.testing.assert_close(vs, torch.from_numpy(data.values))
