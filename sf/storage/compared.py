"""Which flags of two starts are compared, and their differences as words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sf.storage.given import NOT_NOTED, Given, has_moved, way_back

NOT_COMPARED = "experiment", "train_dir", "restart_behavior", "seed"
"""Fields that say nothing of the training: where it is written, and the seed, which is drawn if none is given."""
OUTPUT_FLAGS = (
    "dashboard",
    "with_wandb",
    "with_trackio",
    "wandb_project",
    "wandb_user",
    "wandb_group",
    "wandb_tags",
    "experiment_summaries_interval",
    "keep_checkpoints",
    "save_every_sec",
    "save_best_every_sec",
    "save_milestones_sec",
)
"""What a run shows, sends and keeps; training is the same with any value."""
PATIENCE_FLAGS = "max_restarts", "restart_learner", "env_init_timeout", "env_reset_timeout", "env_step_timeout"
"""How long a run bears faults; training is the same with any value as long as there are none."""


@dataclass(frozen=True)
class EarlierStart:
    """What is known of a start beside its configuration."""

    given: Given = NOT_NOTED
    """The flags that were given at it."""
    without_effect: Collection[str] = ()
    """Flags that the policy does not depend on, see `sf.config.effects`."""


def changes(
    before: Mapping[str, Any], config: Mapping[str, Mapping[str, Any]], earlier: Given, start: EarlierStart
) -> list[str]:
    """The flags in which two starts differ, with both values; one that only one version of sf has is left out.

    Args:
        before, config: role to flag to value, of the earlier start and of this one.
        earlier: the flags that were given at the earlier one. What the run has filled in both times is not compared.
        start: this one.
    """
    now = start.given
    left_out = {*NOT_COMPARED, *OUTPUT_FLAGS, *PATIENCE_FLAGS, *start.without_effect, *(earlier.chosen & now.chosen)}
    found = []
    for role, flags in config.items():
        values = before.get(role)
        if not isinstance(values, dict):
            continue
        for name, value in flags.items():
            if name not in left_out and name in values and values[name] != value:
                found.append(f"{name}={value!r} (was {values[name]!r}{_advice(name, values[name], earlier, now)})")
    return found


def _advice(name: str, before: Any, earlier: Given, now: Given) -> str:
    """For a default of `sf` that has moved; a flag that the user has left out is none."""
    given = now.flags or {}
    return f"; {way_back(name, before, given, earlier)}" if has_moved(name, given, earlier) else ""
