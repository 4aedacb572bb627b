"""`build_trainer`: a trainer class from an execution plan (row D46)."""

from __future__ import annotations

import copy
import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sf.errors import CheckpointError, ConfigError, UsageError
from sf.plans.local_iterator import NOT_READY, LocalIterator, NotReady
from sf.plans.policy import PlanPolicy
from sf.plans.program import default_mapping, unknown_settings
from sf.plans.rollout_ops import STEPS_SAMPLED
from sf.plans.saved_state import load, save
from sf.plans.worker_set import SETTINGS, WorkerSet
from sf.processes.signals import Signals
from sf.storage.experiment import Experiment

COMMON: dict[str, Any] = {
    **SETTINGS,
    "gamma": 0.99,
    "lr": 5e-4,
    "train_batch_size": 200,
    "timesteps_per_iteration": 0,
    "min_iter_time_s": 0,
    "model": {},
    "explore": True,
    "num_threads": 1,
    "multiagent": {"policies": {}, "policy_mapping_fn": default_mapping, "policies_to_train": None},
}
"""Settings of every plan, in the names of RLlib."""
ExecutionPlan = Callable[[WorkerSet, Mapping[str, Any]], LocalIterator]


class Trainer:
    """Owns configuration, workers, plan and metrics; made by `build_trainer`."""

    name = "Trainer"
    default_policy: type[PlanPolicy] | None = None
    default_config: Mapping[str, Any] = {}
    validate_config: Callable[[dict[str, Any]], None] | None = None
    get_policy_class: Callable[[Mapping[str, Any]], type[PlanPolicy]] | None = None
    execution_plan: ExecutionPlan
    before_init: Callable[[Any], None] | None = None
    after_init: Callable[[Any], None] | None = None

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        env: str | Callable[..., Any] | None = None,
        *,
        experiment: Experiment | None = None,
        signals: Signals | None = None,
    ) -> None:
        """Constructs the policies; nothing is sampled before the first `train`.

        Args:
            config: overrides the settings of the class.
            env: the same as ``config["env"]``.
            experiment: a directory for what the workers write.
            signals: see `WorkerSet`.

        Raises:
            ConfigError: there is no setting of a name, or one has a value that it cannot have.
        """
        cls = type(self)
        self.config = merged(cls, {**(config or {}), **({} if env is None else {"env": env})})
        if cls.validate_config is not None:
            cls.validate_config(self.config)
        torch.set_num_threads(self.config["num_threads"])  # more would fight with the workers for cores
        if cls.before_init is not None:
            cls.before_init(self)
        multiagent = {**COMMON["multiagent"], **self.config["multiagent"]}
        self.workers = WorkerSet(
            multiagent["policies"] or self._policy_class(),
            self.config,
            multiagent["policy_mapping_fn"],
            multiagent["policies_to_train"],
            experiment,
            signals,
        )
        self.iteration, self._seconds = 0, 0.0
        self.plan = self._built_plan()
        if cls.after_init is not None:
            cls.after_init(self)

    @classmethod
    def with_updates(cls, **overrides: Any) -> type[Trainer]:
        """Another class with some parts replaced; this one stays as it is (row D7)."""
        return build_trainer(**{**_parts(cls), **overrides})

    def train(self) -> dict[str, Any]:
        """The next result of the plan.

        Raises:
            UsageError: the plan gives something else.
            SfError: an operator failed, or a worker ended and cannot be replaced.
        """
        start = time.perf_counter()
        result: Any = NOT_READY
        while isinstance(result, NotReady):
            result = next(self.plan)
        if not (isinstance(result, Mapping) and "timesteps_total" in result):
            raise UsageError(
                f"The plan of {type(self).__name__} gave a {type(result).__name__}, expected a result. End it with "
                "StandardMetricsReporting(train, workers, config)."
            )
        self._seconds += time.perf_counter() - start
        self.iteration += 1
        return {**result, "training_iteration": self.iteration, "time_total_s": self._seconds}

    def get_policy(self, policy_id: str = "default_policy") -> Any:
        """The local worker's."""
        return self.workers.local_worker().get_policy(policy_id)

    def compute_single_action(self, obs: Any, policy_id: str = "default_policy", state: Sequence[Any] = ()) -> Any:
        """See `PlanPolicy.compute_single_action`."""
        return self.get_policy(policy_id).compute_single_action(obs, state)

    def save(self, checkpoint_dir: str | Path, keep: int | None = None) -> str:
        """Writes policies, optimizers and counters into a folder of their own; returns its path, for `restore`.

        Args:
            checkpoint_dir: where the folder is made.
            keep: how many of those there remain, this one included; None for all.

        Raises:
            UsageError: the state of a policy holds something that no checkpoint takes.
            CheckpointError: it could not be written; the one before is as it was.
        """
        state = self.state()
        frames = int(state["counters"].get(STEPS_SAMPLED, 0))
        return str(save(Path(checkpoint_dir), state["num_steps"], frames, state, keep))

    def restore(self, checkpoint_path: str | Path) -> None:
        """Goes on from what `save` has written; episodes that are under way go on.

        Args:
            checkpoint_path: that `save` returned, or the directory that it was given, whose newest one is taken.

        Raises:
            CheckpointError: there is nothing that fits.
        """
        try:
            self.load_state(load(Path(checkpoint_path)))
        except Exception as error:  # a damaged file can raise anything
            raise CheckpointError(
                f"{checkpoint_path} cannot be gone on from: {error} Only the trainer that saved it goes on from "
                "it; another one needs another directory, with sf-plan another --experiment."
            ) from error

    def state(self) -> dict[str, Any]:
        """Everything that `load_state` needs: that of the policies, and counters."""
        local = self.workers.local_worker()
        return {
            "policies": {name: policy.get_state() for name, policy in local.policy_map.items()},
            "counters": dict(self.plan.shared_metrics.get().counters),
            "num_steps": local.num_steps,
            "iteration": self.iteration,
            "seconds": self._seconds,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of `state`, with a new plan: nothing of the old one is learned from or reported."""
        self.plan.close()
        self.plan, local = self._built_plan(), self.workers.local_worker()
        for name, own in state["policies"].items():
            local.get_policy(name).set_state(own)
        counters = self.plan.shared_metrics.get().counters
        counters.update(state["counters"])
        local.num_steps, self.iteration, self._seconds = state["num_steps"], state["iteration"], state["seconds"]
        local.set_global_vars({"timestep": counters[STEPS_SAMPLED]})
        self.workers.new_episodes()  # those that ended before
        if self.workers.has_begun:
            self.workers.sync_weights()

    def stop(self) -> None:
        """Ends the plan and its processes."""
        try:
            self.plan.close()
        finally:
            self.workers.stop()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _built_plan(self) -> LocalIterator:
        cls = type(self)
        plan = cls.execution_plan(self.workers, self.config)
        if not isinstance(plan, LocalIterator):
            raise UsageError(
                f"The plan of {cls.__name__} returned a {type(plan).__name__}, expected the iterator of "
                "StandardMetricsReporting."
            )
        return plan

    def _policy_class(self) -> type[PlanPolicy]:
        cls = type(self)
        chosen = cls.get_policy_class(self.config) if cls.get_policy_class is not None else None
        policy = chosen or cls.default_policy
        if policy is None:
            raise ConfigError([f"{cls.name} has no default_policy, and multiagent names no policies. Give one."])
        return policy


def build_trainer(
    name: str,
    *,
    execution_plan: ExecutionPlan,
    default_policy: type[PlanPolicy] | None = None,
    default_config: Mapping[str, Any] | None = None,
    validate_config: Callable[[dict[str, Any]], None] | None = None,
    get_policy_class: Callable[[Mapping[str, Any]], type[PlanPolicy]] | None = None,
    before_init: Callable[[Any], None] | None = None,
    after_init: Callable[[Any], None] | None = None,
    mixins: tuple[type, ...] = (),
) -> type[Trainer]:
    """A trainer class.

    Args:
        name: of the class.
        execution_plan: (workers, config) -> iterator over results.
        default_policy: of all agents, unless the config names policies.
        default_config: settings beside those that every plan has.
        validate_config: raises if the settings contradict each other; may change them.
        get_policy_class: from the settings to another policy class, or None.
        before_init: called with the trainer before its workers are made.
        after_init: called with it at the end.
        mixins: classes whose methods win over those of `Trainer`; `before_init` or `after_init` calls their
            constructors, if they have any.
    """
    parts = {
        "name": name, "default_policy": default_policy, "default_config": dict(default_config or {}),
        "mixins": tuple(mixins), "__init__": Trainer.__init__,
    }  # fmt: skip
    functions = {
        "execution_plan": execution_plan, "validate_config": validate_config, "get_policy_class": get_policy_class,
        "before_init": before_init, "after_init": after_init,
    }  # fmt: skip
    methods = {key: None if function is None else staticmethod(function) for key, function in functions.items()}
    return type(name, (*mixins, Trainer), {**parts, **methods, "__module__": __name__})


def _parts(cls: type[Trainer]) -> dict[str, Any]:
    names = "default_policy", "default_config", "validate_config", "get_policy_class", "before_init", "after_init"
    parts = {name: getattr(cls, name) for name in names}
    mixins = getattr(cls, "mixins", ())
    return {"name": cls.name, "execution_plan": cls.execution_plan, "mixins": mixins, **parts}


def merged(cls: type[Trainer], config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a trainer class, overridden.

    Raises:
        ConfigError: there is no setting of a name, or text where a number belongs.
    """
    known = {**COMMON, **cls.default_config}
    if unknown := sorted(config.keys() - known.keys()):
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(sorted(known))}."
        raise ConfigError([f"{cls.name} has no setting {', '.join(unknown)}. {hint}"])
    numbers = {name: value for name, value in known.items() if type(value) in (int, float)}
    texts = [name for name in numbers if isinstance(config.get(name), str)]
    problems = [f"{name}={config[name]!r} must be a number, such as {numbers[name]}." for name in texts]
    if isinstance(size := config.get("train_batch_size", 1), int) and size < 1:
        problems += [f"train_batch_size={size} must be 1 or more."]
    for settings in (cls.default_config, config):
        problems += unknown_settings("multiagent", settings.get("multiagent", {}), COMMON["multiagent"])
    if problems:
        raise ConfigError(problems)
    return {name: copy.deepcopy(config.get(name, value)) for name, value in known.items()}
