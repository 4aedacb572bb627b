"""A run without processes: the real roles of `sf` over real shared memory, stepped one by one by a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from sf.config import (
    Config,
    EvalConfig,
    FaultConfig,
    InferenceConfig,
    LearnerConfig,
    ModelConfig,
    PopulationConfig,
    ReplayConfig,
    RolloutConfig,
    RunConfig,
    SelfPlayConfig,
    check,
)
from sf.envs import find_env, probe
from sf.inference.worker import InferenceWorker
from sf.rollout.worker import RolloutWorker
from sf.run.preparation import vectorized
from sf.run.sizes import resolve
from sf.run.wiring import Shared, wire
from sf.shared.arena import Arena
from sf.shared.fields import StoredField
from sf.shared.role import RoleSpec
from sf.shared.slots import Slots
from sf.storage.experiment import Experiment

ROLES = {
    "run": RunConfig,
    "rollout": RolloutConfig,
    "inference": InferenceConfig,
    "model": ModelConfig,
    "learner": LearnerConfig,
    "replay": ReplayConfig,
    "evaluation": EvalConfig,
    "self_play": SelfPlayConfig,
    "population": PopulationConfig,
    "faults": FaultConfig,
}


def make_config(env: str = "CartPole-v1", **flags: Any) -> Config:
    """A configuration from flags, wherever they belong."""
    small = {"env": env, "seed": 1, "num_workers": 1, "num_envs_per_worker": 8, "rollout": 8, "async_rl": False}
    flags = {"num_batches_per_epoch": 1, "num_epochs": 1, "policy_workers_per_policy": 1} | small | flags
    parts = {}
    for name, role in ROLES.items():
        own = {key: flags.pop(key) for key in list(flags) if key in {one.name for one in fields(role)}}
        parts[name] = role(**own)
    assert not flags, f"unknown flags {flags}"
    return Config(**parts)


@dataclass
class Lab:
    """Shared memory, and the specifications of the roles around it."""

    config: Config
    shared: Shared
    specs: list[RoleSpec]
    slots: Slots
    experiment: Experiment
    told: list[Any] = field(default_factory=list)
    """What the roles have told the supervisor."""

    @property
    def arena(self) -> Arena:
        return self.shared.arena

    def build(self, prefix: str, incarnation: int = 0, **changes: Any) -> Any:
        """Builds the role whose name begins with `prefix`, or one of its successors."""
        spec = next(spec for spec in self.specs if spec.name.startswith(prefix))
        spec = spec.successor(incarnation) if incarnation else spec
        return self._with_ears(replace(spec, arguments=spec.arguments | changes).build())

    def build_all(self) -> list[Any]:
        """Builds every role, learners first."""
        return [self._with_ears(spec.build()) for spec in self.specs]

    def _with_ears(self, role: Any) -> Any:
        role.tell = self.told.append
        return role


def make_lab(path: Path, env: str = "CartPole-v1", **flags: Any) -> Lab:
    """Everything that a run allocates, for a test."""
    return make_lab_with_fields({}, path, env, **flags)


def make_lab_with_fields(
    extra_fields: Mapping[str, StoredField], path: Path, env: str = "CartPole-v1", **flags: Any
) -> Lab:
    """The same with more fields than those of the table."""
    torch.set_num_threads(1)
    config = make_config(env, train_dir=str(path), serial_mode=True, **flags)
    check(config)
    source = find_env(config.run.env, config.run.env_arguments, config.run.max_episode_steps)
    info = probe(source)
    config = resolve(config, info, cores=2)
    config, source = vectorized(config, source, info)
    check(config, info)
    experiment = Experiment(config.run.train_dir, config.run.experiment, config.run.restart_behavior)
    shared, specs = wire(config, info, source, experiment, extra_fields)
    return Lab(config, shared, specs, Slots(shared.topology, shared.arena), experiment)


def step_until(roles: list[Any], done: Callable[[], bool], limit: int = 100_000) -> None:
    """Gives each role its turn until a condition holds."""
    for _ in range(limit):
        if done():
            return
        progressed = [role.step() for role in roles]
        assert any(progressed) or done(), "nobody can go on"
    raise AssertionError("the condition never came true")


__all__ = ["InferenceWorker", "Lab", "RolloutWorker", "make_config", "make_lab", "make_lab_with_fields", "step_until"]
