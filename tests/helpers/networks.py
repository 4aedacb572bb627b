"""Small policies, the spaces of their actions, and the oracles that they are compared with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sf.config import ModelConfig
from sf.policy import ActorCritic
from sf.spaces import ActionColumn, ActionSpec, EnvInfo, LeafSpec

ORACLES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "oracles.json").read_text())


def discrete(num_actions: int) -> ActionSpec:
    return ActionSpec.discrete(num_actions)


def box(size: int) -> ActionSpec:
    return ActionSpec((ActionColumn(low=-1.0, high=1.0),) * size)


def make_policy(
    action: ActionSpec, observations: dict[str, LeafSpec] | tuple[int, ...] = (4,), **config: Any
) -> ActorCritic:
    if isinstance(observations, tuple):
        observations = {"obs": LeafSpec(observations, "float32")}
    return ActorCritic(EnvInfo("test", 1, observations, action), ModelConfig(**config))


def num_parameters(policy: ActorCritic) -> int:
    return sum(p.numel() for p in policy.parameters())


def cases(row: str) -> list[Any]:
    return [
        pytest.param(case["inputs"], case["expected"], id=f"{row}-{i}") for i, case in enumerate(ORACLES[row]["cases"])
    ]
