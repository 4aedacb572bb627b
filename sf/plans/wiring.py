"""Rollout processes of `sf` for a plan: their sizes, their shared memory, and the specifications of their roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sf.config import Config, FaultConfig, InferenceConfig, LearnerConfig, RolloutConfig, RunConfig, check
from sf.machine.cores import usable_cores
from sf.machine.limits import ensure_descriptors
from sf.plans.environments import env_name, registrations
from sf.plans.mailbox import BLOCKS_OF_A_MAILBOX, ORDERS, Mailbox, Parcels
from sf.plans.policy import columns_of
from sf.plans.program import packed
from sf.plans.spaces import observation_leaf
from sf.rollout.bells import RolloutBells
from sf.run.preparation import vectorized
from sf.run.sizes import resolve
from sf.run.wiring import Shared, wire
from sf.shared.doorbell import Doorbell
from sf.shared.fields import Axes, StoredField, TrainingUse, Writer
from sf.shared.role import RoleSpec
from sf.spaces import EnvInfo
from sf.storage.experiment import Experiment

if TYPE_CHECKING:
    from sf.plans.worker import PlanWorker

ACTOR = {"sf.inference.small_worker:SmallInference": "sf.plans.acting:PlanActor"}
ORDERS_FIELD = StoredField(Axes.TRAJECTORY, "int64", Writer.INFERENCE, TrainingUse.UNUSED)


@dataclass(frozen=True)
class Wired:
    """Everything that a driver needs of its workers."""

    config: Config
    info: EnvInfo
    shared: Shared
    specs: list[RoleSpec]
    """The rollout processes, each of which acts for itself."""
    bells: list[Doorbell]
    """Those of the workers; they ring the bell of the supervisor when a fragment is full."""
    orders: list[Mailbox]
    calls: list[Mailbox]
    """To each worker: what to do with each fragment, and what to do once."""
    parcels: list[Parcels]
    """From each worker: what it has made of a fragment."""
    weights: Mailbox
    """Those of all policies, for the driver to publish."""


def wire_workers(
    local: PlanWorker, num_workers: int, experiment: Experiment | None = None, in_process: bool = False
) -> Wired:
    """Allocates what workers share with the driver.

    Args:
        local: the worker of this process. Its policies say which columns there are, and act for roles that the driver
            steps. Of the settings of its program these are read: env, env_config, num_envs_per_worker,
            rollout_fragment_length, normalize_actions, fragments_in_flight, seed.
        num_workers: processes.
        experiment: holds the directory; None for a temporary one.
        in_process: for roles that are stepped by the driver.

    Raises:
        SfError: the environment or the settings are refused.
    """
    program = local.program
    source, info = program.look
    columns = {name: columns_of(policy, name) for name, policy in local.policy_map.items()}
    observation_leaf(info)
    config = _config(program.settings, num_workers, in_process, info.num_agents)
    config = resolve(config, info, cores=usable_cores())
    config, source = vectorized(config, source, info)
    check(replace(config, inference=InferenceConfig(policy_workers_per_policy=1)), info)  # any policy acts for itself
    with nullcontext(experiment) if experiment is not None else temporary_experiment() as directory:
        shared, specs = wire(config, info, source, directory, {ORDERS: ORDERS_FIELD})
    orders, calls = ([Mailbox() for _ in range(num_workers)] for _ in range(2))
    topology, weights = shared.topology, Mailbox()
    each = 1 + 2 * BLOCKS_OF_A_MAILBOX + topology.slots_per_group  # a bell, orders and calls, parcels
    ensure_descriptors(num_workers, num_workers * each)
    parcels = [Parcels(topology.slots_of_group(worker)) for worker in range(num_workers)]
    worker = local if in_process else packed("A plan", replace(program, registered=registrations(source)))
    further: dict[str, Any] = {"columns": columns, "weights": weights, "worker": worker}
    own = [{"orders": orders[i], "calls": calls[i], "parcels": parcels[i]} for i in range(num_workers)]
    workers = [spec.with_factories(ACTOR, **further, **own[spec.index]) for spec in specs if spec.kind == "rollout"]
    bells = [spec.arguments["bells"].own for spec in workers]
    workers = [
        replace(spec, arguments=spec.arguments | {"bells": RolloutBells(bell, [], [shared.supervisor_bell])})
        for spec, bell in zip(workers, bells, strict=True)
    ]
    shared = replace(shared, least_rollout_workers=num_workers)  # a driver may wait for each of them
    return Wired(config, info, shared, workers, bells, orders, calls, parcels, weights)


def _config(settings: Mapping[str, Any], num_workers: int, in_process: bool, num_agents: int) -> Config:
    """A configuration in which one batch is a fragment of every worker."""
    length, envs = settings["rollout_fragment_length"], settings["num_envs_per_worker"]
    base = Config(run=RunConfig(env=env_name(settings["env"])))
    return replace(
        base,
        run=replace(base.run, seed=settings["seed"], serial_mode=in_process, async_rl=True, train_for_env_steps=None),
        rollout=RolloutConfig(
            num_workers=num_workers, num_envs_per_worker=envs, worker_num_splits=1, rollout=length,
            action_bounds="scale" if settings["normalize_actions"] else "clip",
        ),
        inference=InferenceConfig(policy_workers_per_policy=0),
        learner=LearnerConfig(
            batch_size=num_workers * envs * num_agents * length, num_batches_per_epoch=1, num_epochs=1,
            num_batches_to_accumulate=settings["fragments_in_flight"],
        ),
        faults=FaultConfig(**settings.get("faults", {})),
    )  # fmt: skip


@contextmanager
def temporary_experiment() -> Iterator[Experiment]:
    """A directory that the wiring asks for; plans write nothing there."""
    with TemporaryDirectory(prefix="sf-plan-") as directory:
        experiment = Experiment(directory, "plan", "resume")
        try:
            yield experiment
        finally:
            experiment.close()
