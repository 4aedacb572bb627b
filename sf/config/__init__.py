"""Configuration: the dataclasses, their checks, and derived values. Imports neither torch nor gymnasium."""

from __future__ import annotations

from sf.config.algorithm_flags import (
    OF_ALGORITHMS,
    changed_algorithm_flags,
    note_on_unread_flags,
    unread_by_ours,
)
from sf.config.checks import check
from sf.config.learner import LearnerConfig
from sf.config.model import ModelConfig
from sf.config.population import PopulationConfig
from sf.config.roles import EvalConfig, FaultConfig, InferenceConfig, ReplayConfig, RolloutConfig, RunConfig
from sf.config.self_play import SelfPlayConfig
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
from sf.config.whole import Config

__all__ = [
    "OF_ALGORITHMS",
    "Config",
    "EvalConfig",
    "FaultConfig",
    "InferenceConfig",
    "LearnerConfig",
    "ModelConfig",
    "PopulationConfig",
    "ReplayConfig",
    "RolloutConfig",
    "RunConfig",
    "SelfPlayConfig",
    "changed_algorithm_flags",
    "check",
    "envs_per_group",
    "limit_of_drawn_lag",
    "note_on_unread_flags",
    "rows_per_group",
    "samples_per_iteration",
    "samples_per_round",
    "steps_per_round",
    "sync_ratio",
    "trajectories_per_dataset",
    "unread_by_ours",
]
