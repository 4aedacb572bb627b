"""Policies to ask: small ones that show what they were given, networks, and time steps for both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from sf.config import ModelConfig
from sf.policy import (
    ActorCritic,
    BoundedTensorSpec,
    Policy,
    PolicyStep,
    StepType,
    TensorSpec,
    TimeStep,
    time_step_spec,
    to_tensors,
)
from sf.policy.leaf_distributions import Fixed
from sf.policy.nests import Nest, map_leaves
from sf.spaces import EnvInfo
from sf.spaces.from_gymnasium import action_spec, observation_leaves
from tests.helpers.spaces import VECTOR

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())
OBSERVATION = TensorSpec((2,), torch.float32)
FLOAT = BoundedTensorSpec((), torch.float32, None, -10.0, 10.0)


def cases(row: str) -> list[Any]:
    return [
        pytest.param(case["inputs"], case["expected"], id=f"{row}-{i}") for i, case in enumerate(ORACLES[row]["cases"])
    ]


def steps(num: int = 3, *step_types: int) -> TimeStep:
    """A batch of time steps; all in the middle of an episode unless types are given."""
    first = TimeStep.first(torch.zeros(num, 2), num)
    return first._replace(step_type=torch.tensor(step_types or (StepType.MID,) * num, dtype=torch.int32))


class Constant(Policy):
    """Gives back what it was made with."""

    def __init__(self, action: Nest, action_spec: Nest, observation: Nest = OBSERVATION, **options: Any) -> None:
        super().__init__(time_step_spec(observation), action_spec, **options)
        self.constant = action

    def _action(self, time_step: TimeStep, policy_state: Nest, seed: Any) -> PolicyStep:
        return PolicyStep(self.constant, policy_state)


class Drawn(Policy):
    """Draws from fixed distributions, [B] or [B, D]."""

    def __init__(self, distribution: Nest, action_spec: Nest, info: Nest = (), **options: Any) -> None:
        super().__init__(time_step_spec(OBSERVATION), action_spec, **options)
        self.fixed, self.side = distribution, info

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        return PolicyStep(self.fixed, policy_state, self.side)


class Remembering(Policy):
    """Its action and distribution show the state that they saw."""

    def __init__(self, initial: float = 0.0, **options: Any) -> None:
        state = TensorSpec((), torch.float32)
        super().__init__(time_step_spec(OBSERVATION), TensorSpec((), torch.float32), state, **options)
        self.initial = initial

    def _get_initial_state(self, batch_size: int | None) -> Tensor:
        return torch.full(() if batch_size is None else (batch_size,), self.initial)

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> PolicyStep:
        seen = policy_state if time_step.step_type.dim() < 2 else policy_state.unsqueeze(1)
        return PolicyStep(Fixed(seen.expand(time_step.step_type.shape), 1), policy_state)


def network(observation: Any = VECTOR, action: Any = None, **config: Any) -> ActorCritic:
    action = spaces.Discrete(4) if action is None else action
    info = EnvInfo("test", 1, observation_leaves(observation), action_spec(action))
    made = ActorCritic(info, ModelConfig(encoder_mlp_layers=(8,), encoder_conv_mlp_layers=(8,), rnn_size=6, **config))
    with torch.no_grad():  # heads begin near 0, which would make all actions alike
        made.policy_head.weight.mul_(100)
    return made


def batch(policy: Policy, space: Any, num: int = 5) -> TimeStep:
    space.seed(3)
    rows = [to_tensors(space.sample(), policy.time_step_spec.observation) for _ in range(num)]
    return TimeStep.first(map_leaves(lambda *parts: torch.stack(parts), *rows), num)
