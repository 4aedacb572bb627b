"""The configuration as a whole: a part for each role, see `sf.config.roles`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sf.config.learner import LearnerConfig
from sf.config.model import ModelConfig
from sf.config.population import PopulationConfig
from sf.config.roles import EvalConfig, FaultConfig, InferenceConfig, ReplayConfig, RolloutConfig, RunConfig
from sf.config.self_play import MAPPING as SELF_PLAY
from sf.config.self_play import SelfPlayConfig
from sf.config.storage import dump, load, without

REMOVED = {"run": ("cuda_graphs",)}
"""Flags of earlier versions that changed no result; configurations of earlier runs still carry them."""


@dataclass(frozen=True)
class Config:
    """Everything that can be set; each role receives its own part."""

    run: RunConfig
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    self_play: SelfPlayConfig = field(default_factory=SelfPlayConfig)
    population: PopulationConfig = field(default_factory=PopulationConfig)
    faults: FaultConfig = field(default_factory=FaultConfig)

    @property
    def seats(self) -> tuple[int, ...]:
        """Policies that play as snapshots of policy 0."""
        others = range(1, self.run.num_policies if self.self_play.self_play else 1)
        return tuple(policy for policy in others if policy not in self.run.frozen)

    @property
    def acting_only(self) -> frozenset[int]:
        """Policies that act and do not learn."""
        return frozenset({*self.run.frozen, *self.seats})

    @property
    def num_shares(self) -> int:
        """Policies among which the steps of all agents are dealt evenly.

        In self-play policy 0 has most of them, and its batches count those of the others as well.
        """
        return 1 if self.self_play.self_play else self.run.num_policies

    @property
    def mapping(self) -> str:
        """`policy_mapping`, or that of self-play where none is named."""
        is_free = self.self_play.self_play and self.run.policy_mapping == "random"
        return SELF_PLAY if is_free else self.run.policy_mapping

    @property
    def workers_act(self) -> bool:
        """Whether rollout workers act for themselves."""
        return self.inference.policy_workers_per_policy == 0

    @property
    def overlaps(self) -> bool:
        """Whether one process samples and learns at once, in two threads: a simulator in tensors, asynchronously."""
        return self.run.serial_mode and self.run.async_rl and self.rollout.vectorization == "tensors"

    @property
    def takes_turns(self) -> bool:
        """Whether all roles have their turn in one thread, so that a run repeats."""
        return self.run.serial_mode and not self.overlaps

    @property
    def groups_per_worker(self) -> int:
        """`worker_num_splits`, or what it is if left open: double buffering is for workers that wait for actions.

        As long as it is open whether they do, the answer is 2, except for an odd number of environments.
        """
        is_odd = (self.rollout.num_envs_per_worker or 0) % 2 == 1
        return self.rollout.worker_num_splits or (1 if self.workers_act or is_odd else 2)

    @property
    def datasets_in_flight(self) -> int:
        """Batches that may exist at once; a synchronous run holds the one it trains on."""
        return self.learner.num_batches_to_accumulate if self.run.async_rl else 1

    def to_json(self) -> dict[str, Any]:
        """Role to field to value, in plain JSON types."""
        data: dict[str, Any] = dump(self)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Config:
        """The inverse of `to_json`; ConfigError with every unknown name and wrong type in `data`."""
        return load(cls, without(data, REMOVED))
