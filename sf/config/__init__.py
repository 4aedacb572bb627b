"""Configuration: the dataclasses, their checks, and derived values. Imports neither torch nor gymnasium."""

from __future__ import annotations

from sf.config.checks import check
from sf.config.roles import (
    Config,
    EvalConfig,
    FaultConfig,
    InferenceConfig,
    LearnerConfig,
    ModelConfig,
    ReplayConfig,
    RolloutConfig,
    RunConfig,
)
from sf.config.sizes import (
    envs_per_group,
    limit_of_drawn_lag,
    rows_per_group,
    samples_per_iteration,
    samples_per_round,
    steps_per_round,
    sync_ratio,
    trajectories_per_dataset,
)

__all__ = [
    "Config",
    "EvalConfig",
    "FaultConfig",
    "InferenceConfig",
    "LearnerConfig",
    "ModelConfig",
    "ReplayConfig",
    "RolloutConfig",
    "RunConfig",
    "check",
    "envs_per_group",
    "limit_of_drawn_lag",
    "rows_per_group",
    "samples_per_iteration",
    "samples_per_round",
    "steps_per_round",
    "sync_ratio",
    "trajectories_per_dataset",
]
