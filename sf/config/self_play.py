"""Self-play: policy 0 learns against snapshots of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from sf.config.frozen_policies import frozen_flag
from sf.config.ranges import AT_LEAST_1, UNIT, Range

if TYPE_CHECKING:
    from sf.config.whole import Config

MAPPING = "self_play"
"""The mapping of a run with self-play that names no other one."""


@dataclass(frozen=True)
class SelfPlayConfig:
    """Who plays against policy 0, where it learns from games against its past selves."""

    self_play: bool = False
    """Policy 0 learns, and every other policy that is not frozen plays as one of its snapshots; num_policies says how
    many opponents there are at once."""
    self_play_opponents: Literal["uniform", "latest", "hard"] = "uniform"
    """How a snapshot is drawn from the pool: each alike, the newest one half of the time, or those that policy 0 beats
    least with a weight of (1 - score)^2."""
    self_play_mirror: Annotated[float, UNIT] = 0.5
    """Share of the episodes in which policy 0 plays all sides."""
    self_play_games: Annotated[int, AT_LEAST_1] = 50
    """Games against a snapshot before another one is drawn in its place."""
    self_play_snapshot_every: Annotated[int, AT_LEAST_1] = 100_000
    """Frames of policy 0 between two snapshots."""
    self_play_pool_size: Annotated[int, Range(2)] = 20
    """Most snapshots in the pool; the newer half stays, and of the older half the one that policy 0 beats most goes."""
    self_play_gate: Annotated[float, UNIT] = 0.0
    """Mean score against the pool, from 0 to 1, that policy 0 needs for a new snapshot."""


def self_play_problems(config: Config) -> list[str]:
    """A sentence for everything that keeps a run from playing against itself."""
    problems, run = [], config.run
    if run.policy_mapping == MAPPING and run.num_policies < 2:
        problems.append(
            f"policy_mapping={MAPPING} deals policy 0 and an opponent, and num_policies={run.num_policies}. Use "
            "--num_policies=2 or more."
        )
    if not config.self_play.self_play:
        return problems
    if run.num_policies < 2:
        problems.append(
            f"self_play=True with num_policies={run.num_policies}: policy 0 learns, and the others are its opponents. "
            "Use --num_policies=3 for two opponents at once."
        )
    elif not config.seats:
        problems.append(
            f"self_play=True with {frozen_flag(config)}: no policy is left to play as a snapshot. Raise "
            "--num_policies, or leave one of them out."
        )
    if run.num_policies > 1 and 0 in config.run.frozen:
        problems.append(f"self_play=True has policy 0 learn, and {frozen_flag(config)} freezes it. Freeze another one.")
    if config.learner.num_learners > 1:
        problems.append(
            f"self_play=True with num_learners={config.learner.num_learners}: an opponent has one learner, which only "
            "publishes it. Use --num_learners=1."
        )
    return problems


def agents_problems(config: Config, num_agents: int) -> list[str]:
    """A sentence if the environment has no second side."""
    if num_agents > 1 or not (config.self_play.self_play or config.run.policy_mapping == MAPPING):
        return []
    return [
        f"{config.run.env} has one agent, and self-play needs two sides. Leave self_play out, or choose an environment "
        "of several agents."
    ]
