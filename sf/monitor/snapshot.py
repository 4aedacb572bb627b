"""The input of the monitor: the shared counters of all processes at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sf.monitor.lag_sight import LagCounted


class Lag(NamedTuple):
    """Policy lag of the last minibatch, in optimizer steps; all -1 before the first one."""

    min: float = -1.0
    avg: float = -1.0
    max: float = -1.0


NO_LAG = Lag()


@dataclass(frozen=True)
class PolicySnapshot:
    """The counters of one policy: its learner's, and the sums over its inference workers."""

    frames: int = 0
    """Frames the learner has trained on, frame skip and the history before a resume included."""
    new_frames: int = 0
    """Those of them since this start."""
    version: int = 0
    """Finished optimizer steps, the history included."""
    iterations: int = 0
    """Datasets trained on since this start."""
    waits: bool = False
    """Whether its learner sleeps until there is a dataset."""
    lag: Lag = NO_LAG
    lag_counted: LagCounted = field(default_factory=LagCounted)
    """The policy lag of all transitions since this start."""
    left_out: int = 0
    """Transitions that were too old to train on since this start."""
    cut_short: int = 0
    """Batches of which a rank contributed a part, because most others had theirs."""
    samples: int = 0
    """Actions computed since this start."""
    requests: int = 0
    """Requests answered since this start."""
    forwards: int = 0
    """Forward passes since this start."""
    forward_s: float = 0.0
    """Seconds spent in forward passes since this start."""
    wait_s: float = 0.0
    """Seconds spent waiting for requests since this start."""
    refreshes: int = 0
    """How often the inference worker that has taken new weights most often did so since this start."""
    weights_version: int = 0
    """Version of the weights that it has."""
    refresh_s: float = 0.0
    """Mean seconds in which it takes them."""
    stats: Mapping[str, float] = field(default_factory=dict)
    """Further values for the group `stats` in TensorBoard, such as gpu_mem_learner."""


@dataclass(frozen=True)
class Snapshot:
    """All counters at one moment."""

    time_s: float
    """Monotonic."""
    policies: tuple[PolicySnapshot, ...]
    """By policy id."""
    clipped_rewards: float = 0.0
    """Share of the rewards since this start that `reward_clip` has limited."""
    collected: int = 0
    """Steps that the rollout workers have taken since this start, one per agent."""
    resetting: int = 0
    """Rollout workers that are inside `reset` of an environment."""

    @property
    def has_learned(self) -> bool:
        """Whether anything was trained on since this start."""
        return any(policy.iterations or policy.new_frames for policy in self.policies)

    @property
    def frames(self) -> int:
        """Frames over all policies."""
        return sum(policy.frames for policy in self.policies)
