"""Configurations of no particular environment."""

from __future__ import annotations

from typing import Any

from sf.config import Config, LearnerConfig, ModelConfig, RolloutConfig, RunConfig
from sf.spaces import ActionSpec, EnvInfo, LeafSpec


def env_info(num_agents: int = 1) -> EnvInfo:
    action = ActionSpec.discrete(2)
    return EnvInfo("Toy-v0", num_agents, {"obs": LeafSpec((4,), "float32")}, action)


def make(
    run: dict[str, Any] | None = None,
    rollout: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    learner: dict[str, Any] | None = None,
) -> Config:
    return Config(
        run=RunConfig(**({"env": "Toy-v0"} | (run or {}))),
        rollout=RolloutConfig(**(rollout or {})),
        model=ModelConfig(**(model or {})),
        learner=LearnerConfig(**({"updates": "fast"} | (learner or {}))),
    )
