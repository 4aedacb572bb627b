"""The flags of ``sf-plan``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sf.config.ranges import AT_LEAST_1


@dataclass(frozen=True)
class PlanConfig:
    """How long a plan runs, and where it writes. All other flags are settings of the trainer in the file."""

    trainer: str | None = None
    """Name of the trainer class; None for the last one in the file."""
    train_dir: str = "train_dir"
    """Directory that holds the experiments."""
    experiment: str = "default_plan"
    """Name of the run; `sf-plan` takes those of the file and the environment if it is left out."""
    restart_behavior: Literal["resume", "restart", "overwrite"] = "resume"
    """What to do with an earlier run of this name."""
    train_for_env_steps: Annotated[int, AT_LEAST_1] | None = None
    """Stop after so many sampled steps; earlier starts count."""
    train_for_seconds: Annotated[int, AT_LEAST_1] | None = None
    """Stop after so much time."""
    stop_at_reward: float | None = None
    """Stop when the mean return of 100 episodes is this high."""
    save_every_sec: Annotated[int, AT_LEAST_1] = 120
    """Seconds between two checkpoints."""
