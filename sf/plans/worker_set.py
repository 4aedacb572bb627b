"""The workers of a plan: one local worker, which learns, and any number of remote ones, which sample (row D12)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from sf.config import FaultConfig
from sf.envs.generators import seed_globals
from sf.errors import ConfigError, UsageError
from sf.machine.kernel import ensure_linux
from sf.machine.limits import ensure_whole_words
from sf.plans.environments import look_at
from sf.plans.fragments import Fragments, RemoteFragments
from sf.plans.local_iterator import END, Transform
from sf.plans.policy import PlanPolicy
from sf.plans.program import PolicySpec, Program, default_mapping
from sf.plans.sample_batch import DEFAULT_POLICY
from sf.plans.spaces import action_space, observation_space
from sf.plans.wiring import wire_workers
from sf.plans.worker import PARTS, WHOLE, PlanWorker, RemoteWorker
from sf.processes.signals import Signals
from sf.storage.experiment import Experiment

T = TypeVar("T")

SETTINGS: dict[str, Any] = {
    "env": None,
    "env_config": {},
    "num_workers": 0,
    "num_envs_per_worker": 1,
    "rollout_fragment_length": 200,
    "batch_mode": PARTS,
    "normalize_actions": True,
    "fragments_in_flight": 2,
    "seed": None,
    "faults": {},
}
"""Settings of workers, in the names of RLlib where it has them."""
NEAR = 0.88
"""How like a setting an unknown name must be to be refused; other names may be those of a policy."""
Policies = type[PlanPolicy] | Mapping[str, PolicySpec | tuple[Any, ...]]


class WorkerSet:
    """Constructs the policies; environments and processes begin with the first sample."""

    def __init__(
        self,
        policies: Policies,
        config: Mapping[str, Any],
        policy_mapping_fn: Callable[[int], str] = default_mapping,
        policies_to_train: Sequence[str] | None = None,
        experiment: Experiment | None = None,
        signals: Signals | None = None,
    ) -> None:
        """Looks at the environment.

        Args:
            policies: a class, or several policies by name: (class, observation space, action space, config), where a
                space that is None is that of the environment.
            config: settings of the workers and of the policies, see `SETTINGS`. A ``seed`` is also that of the global
                generators of Python, NumPy and torch.
            policy_mapping_fn: from the number of an agent in its environment to the name of its policy.
            policies_to_train: names; None for all.
            experiment: a directory; None for a temporary one.
            signals: stop signals that wake the driver.

        Raises:
            ConfigError: a setting has a value that no worker can have.
            EnvError: there is no such environment.
            ResourceError: the processor is not for several processes.
        """
        self.config = {**SETTINGS, **config}
        named = _named(policies)
        _check(self.config, _own_settings(named))
        _expect_processor(self.num_workers)
        look = _, info = look_at(self.config["env"], self.config["env_config"])
        program = Program(_specs(named, info, self.config), policy_mapping_fn, policies_to_train, look, self.config)
        if self.config["seed"] is not None:
            seed_globals([self.config["seed"]])
        self._local = PlanWorker(program)
        self._experiment, self._signals = experiment, signals
        self._fragments: RemoteFragments | None = None
        self._remote: list[RemoteWorker] = []
        self.reader: object = None
        """The iterator over batches of the remote workers that is being read."""

    @property
    def has_begun(self) -> bool:
        """Whether there are remote workers that run."""
        return self._fragments is not None and not self._fragments.is_closed

    @property
    def begun_fragments(self) -> RemoteFragments | None:
        """Those of the remote workers; None before they begin."""
        return self._fragments

    @property
    def num_workers(self) -> int:
        """Remote ones."""
        return int(self.config["num_workers"])

    @property
    def fragments(self) -> RemoteFragments:
        """Those of the remote workers, whose processes begin with this."""
        if self._fragments is None:
            wired = wire_workers(self._local, self.num_workers, self._experiment)
            self._fragments = RemoteFragments(wired, self._signals)
            self._publish(self._fragments, None)
            self._fragments.start()
            self._remote = [RemoteWorker(self._fragments, index, self) for index in range(self.num_workers)]
        return self._fragments

    def local_worker(self) -> PlanWorker:
        """The one that learns."""
        return self._local

    def remote_workers(self) -> list[RemoteWorker]:
        """The ones in other processes, which begin with this."""
        return self._remote if not self.num_workers else (self.fragments, self._remote)[1]

    def sync_weights(self, policies: Sequence[str] | None = None, only: RemoteWorker | None = None) -> None:
        """Publishes the weights of the local worker; remote ones take them before their next fragment.

        Args:
            policies: ignored, because the weights of all policies have one version.
            only: the worker that takes them; None for all.
        """
        if self.num_workers:
            takers = None if only is None else [only.index]
            self._publish(self.fragments, takers)

    def _publish(self, fragments: Fragments, takers: list[int] | None) -> None:
        local = self._local
        fragments.publish(local.get_weights(), local.num_steps, takers, local.global_vars["timestep"])

    def foreach_worker(self, func: Callable[[Any], T]) -> list[T]:
        """What the function returns for each worker, the local one first; it runs where the worker is.

        What it changes there is lost where a worker is replaced: the new one begins with the policies of the plan.
        """
        found = [self._local.apply(func)]
        if self.num_workers:
            found += self.fragments.call(range(self.num_workers), func)
        return found

    def foreach_policy(self, func: Callable[[PlanPolicy, str], T]) -> list[T]:
        """What the function returns for each policy of each worker, and its name."""
        each: list[list[T]] = self.foreach_worker(lambda worker: worker.foreach_policy(func))
        return [result for results in each for result in results]

    def trainable_policies(self) -> list[str]:
        """Names of the policies that are trained."""
        return list(self._local.policies_to_train)

    def add_workers(self, num_workers: int) -> None:
        """Has so many remote workers more; all of them begin anew, with new episodes."""
        _expect_processor(num_workers)
        self._stop_remote()
        self.config["num_workers"] = self.num_workers + num_workers

    def new_episodes(self) -> list[Any]:
        """Those that have ended since the last call: `Episode`, or `TeamEpisode` where there are several agents."""
        return self._local.new_episodes() + (self._fragments.new_episodes() if self._fragments is not None else [])

    def stop(self) -> None:
        """Ends the processes and closes the environments."""
        try:
            self._local.stop()
        finally:
            self._stop_remote()

    def __enter__(self) -> WorkerSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _stop_remote(self) -> None:
        fragments, self._fragments, self._remote = self._fragments, None, []
        if fragments is not None:
            fragments.close()


class WorkerShards:
    """The remote workers as shards of a parallel iterator over their batches."""

    def __init__(self, workers: WorkerSet, make: Callable[[Any], Sequence[Transform]] | None = None) -> None:
        """Starts nothing yet.

        Args:
            workers: of the plan.
            make: called in each worker, with its policies; returns transforms of an iterator over batches.
        """
        self._workers, self._make = workers, make
        self._items: list[list[Any]] = []

    @property
    def actors(self) -> Sequence[Any]:
        """See `Shards`."""
        return self._workers.remote_workers() if self._workers.has_begun else range(self._workers.num_workers)

    def begin(self, transforms: Sequence[Transform]) -> None:
        """See `Shards`.

        Raises:
            UsageError: another iterator reads these workers.
        """
        workers, makes_items = self._workers, bool(transforms) or self._make is not None
        if workers.reader not in (None, self):
            raise UsageError(
                "Another iterator reads these remote workers. Close it first, or read one iterator twice with "
                "duplicate(2)."
            )
        workers.reader, fragments = self, workers.fragments
        self._items = [[] for _ in range(workers.num_workers)]
        workers.sync_weights()
        if makes_items:
            make = self._make
            fragments.order(lambda worker: [*(make(worker) if make else ()), *transforms])

    def ask(self, shard: int) -> None:
        """See `Shards`."""
        self._workers.fragments.ask(shard)

    def wait(self, shards: set[int], timeout_s: float | None = None) -> list[int]:
        """See `Shards`."""
        fragments = self._workers.fragments
        while True:
            if there := [shard for shard in sorted(shards) if self._items[shard]]:
                return there
            ready = fragments.wait(shards, timeout_s)
            for shard in ready:
                self._items[shard] += fragments.take(shard)
            if not ready:
                return []

    def take(self, shard: int) -> Any:
        """See `Shards`; there are always more."""
        return self._items[shard].pop(0) if self._items[shard] else END

    def end(self) -> None:
        """See `Shards`; never waits."""
        if self._workers.reader is not self:
            return
        self._workers.reader = None
        if not self._workers.has_begun:
            return
        fragments = self._workers.fragments
        for shard in range(self._workers.num_workers):
            fragments.cancel(shard)


def _named(policies: Policies) -> dict[str, PolicySpec]:
    named: Mapping[str, Any] = policies if isinstance(policies, Mapping) else {DEFAULT_POLICY: PolicySpec(policies)}
    return {name: spec if isinstance(spec, PolicySpec) else PolicySpec(*spec) for name, spec in named.items()}


def _own_settings(policies: Mapping[str, PolicySpec]) -> set[str]:
    """Names of settings that policies have themselves."""
    names: set[str] = set()
    for spec in policies.values():
        defaults = getattr(getattr(spec.policy_class, "hooks", None), "get_default_config", None)
        names |= {*spec.config, *(defaults() if defaults else ())}
    return names


def _specs(policies: Mapping[str, PolicySpec], info: Any, config: Mapping[str, Any]) -> dict[str, PolicySpec]:
    """Each with its spaces and its whole config."""
    observations, actions = observation_space(info), action_space(info)
    return {
        name: PolicySpec(
            spec.policy_class,
            observations if spec.observation_space is None else spec.observation_space,
            actions if spec.action_space is None else spec.action_space,
            {**config, **spec.config},
        )
        for name, spec in policies.items()
    }


def _expect_processor(num_workers: int) -> None:
    """Without remote workers any processor will do.

    Raises:
        ResourceError: words in shared memory may become visible in another order.
    """
    if num_workers:
        ensure_linux("num_workers=0")
        ensure_whole_words("num_workers=0")


def _check(config: Mapping[str, Any], own_settings: set[str]) -> None:
    problems = []
    for name, least in (("num_workers", 0), ("num_envs_per_worker", 1), ("rollout_fragment_length", 1)):
        value = config[name]
        if not isinstance(value, int) or value < least:
            problems.append(f"{name}={value!r} must be a whole number, {least} or more.")
    if config["batch_mode"] not in (PARTS, WHOLE):
        problems.append(f"batch_mode={config['batch_mode']!r} must be {PARTS!r} or {WHOLE!r}.")
    known = {each.name for each in fields(FaultConfig)}
    if unknown := sorted(set(config["faults"]) - known):
        problems.append(f"faults has no {', '.join(unknown)}. There are {', '.join(sorted(known))}.")
    for name in config.keys() - SETTINGS.keys() - own_settings:
        if meant := difflib.get_close_matches(name, SETTINGS, 1, NEAR):
            problems.append(f"There is no setting {name}. Did you mean {meant[0]}?")
    if not config["env"]:
        problems.append("env is missing. Give the name of an environment, like 'CartPole-v1', or a class.")
    if problems:
        raise ConfigError(problems)
