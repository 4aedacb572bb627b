"""How many of everything a run has: decided here and nowhere else.

`decide` fills in what the user has left open, from one look at the environment and the number of cores. `Sizes` follow
from a configuration without gaps; they are computed once and handed on.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from fractions import Fraction

from sf.config import (
    Config,
    LearnerConfig,
    RolloutConfig,
    envs_per_group,
    rows_per_group,
    samples_per_round,
    trajectories_per_dataset,
)
from sf.config.roles import DEFAULT_ROLLOUT
from sf.config.written_out import is_small, is_written_out
from sf.envs.probe import FirstLook
from sf.envs.step_time import StepTime
from sf.envs.vectorization import PAYS_FROM
from sf.errors import ConfigError
from sf.machine.cores import usable_cores
from sf.run.updates import choose_updates, epochs_for, profits_from_long_trajectories, with_updates
from sf.shared.slots import Topology, slots_per_group
from sf.spaces import EnvInfo, image_layout

DEFAULT_NUM_ENVS = 64
"""Environments over all workers, on any machine: learning must not depend on the number of cores."""
LONG_ROLLOUT = 128
"""Steps in a trajectory where fewer environments, of the same batch, learn more from a frame."""
MAX_DEFAULT_WORKERS = 32
LONGEST_FIRST_ROUND_S = 10.0
"""Limit for making and resetting all environments and stepping them once through a trajectory. Where 64 of them take
longer, there are fewer."""
LEAST_GROUP_S = 1e-4
"""A group that takes less time for a step costs more to serve than to step; then fewer, larger ones are better."""
MOST_THREADS = 8
"""Cores that a learner may take from the other roles; more than two have not been measured."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that follow from a configuration without gaps."""

    topology: Topology
    """Sizes of the shared memory."""
    trajectories: int
    """In a batch, of all policies together."""
    learner_threads: int
    """Threads of each learner."""
    least_rollout_workers: int
    """So many must be left for the run to go on."""
    num_with_torch: int
    """Processes that load torch."""

    @classmethod
    def of(cls, config: Config, info: EnvInfo, cores: int | None = None) -> Sizes:
        """Those of a run of several processes.

        Args:
            config: decided.
            info: spaces of the environments.
            cores: that the run may use; None for all that it can.
        """
        topology, trajectories = topology_of(config, info), trajectories_per_dataset(config)
        each_policy = (0 if topology.workers_act else topology.inference_per_policy) + topology.num_learners
        with_torch = 1 + topology.num_policies * each_policy + (config.evaluation.eval_every_steps > 0)
        return cls(
            topology=topology,
            trajectories=trajectories,
            learner_threads=learner_threads(config, info, cores),
            least_rollout_workers=_least_rollout_workers(config, topology, trajectories),
            num_with_torch=with_torch,
        )

    @property
    def num_further_threads(self) -> int:
        """Those of learners, beside the first one of each."""
        return (self.learner_threads - 1) * self.topology.num_policies * self.topology.num_learners

    @property
    def batches_held(self) -> Fraction:
        """In all slots when sampling pauses; more than were asked for where the fewest slots are too many."""
        return Fraction(self.topology.num_slots * self.topology.rows, self.trajectories)


def decide(config: Config, look: FirstLook, cores: int) -> Config:
    """The configuration without None, see `resolve`; fitted to what a look at the environment has found.

    Raises:
        ConfigError: the batch size cannot be derived, or more environments are asked for than there can be.
    """
    if look.refuses_second:
        config = one_each(config, look.info, look.refuses_second)
    resolved = resolve(config, look.info, cores, look.step_time if look.is_timed else None)
    if look.refutes_vectorization:
        resolved = replace(resolved, rollout=replace(resolved.rollout, vectorization="none"))
    return resolved


def wants_step_time(config: Config) -> bool:
    """Whether sizes or updates follow from how long a step takes; where runs repeat, only from the cores."""
    learner = config.learner
    is_open = config.rollout.num_envs_per_worker is None or (learner.updates == "auto" and learner.num_epochs is None)
    return config.run.async_rl and not config.run.serial_mode and is_open


def resolve(config: Config, info: EnvInfo, cores: int, step: StepTime | None = None) -> Config:
    """The configuration without None: sizes follow from the environment and the cores, a seed is drawn.

    Args:
        config: values of the user.
        info: its spaces.
        cores: that the run may use.
        step: how long the environment takes for a step and to begin, if sizes are to follow from that.

    Raises:
        ConfigError: the batch size cannot be derived.
    """
    config = _with_rollout(with_updates(config, info, choose_updates(config, info, cores, step)), info)
    if config.rollout.num_envs_per_worker is not None:
        step = None  # the other sizes follow from that number and the cores
    if config.inference.policy_workers_per_policy is None:
        # Then there are many workers with few environments each. Those that step as one wait together, however many.
        waits = step is not None and step.waits and step.copies == 1
        acting = None if waits else _acting(config, info, cores, step)
        config = acting or _sized(_with_inference(config, 1), info, cores, step)
    else:
        config = _sized(config, info, cores, step, least=max(1, config.inference.policy_workers_per_policy))
    seed = secrets.randbits(32) if config.run.seed is None else config.run.seed
    config = replace(config, run=replace(config.run, seed=seed))
    return replace(config, learner=_with_minibatches(config, info))


def _with_rollout(config: Config, info: EnvInfo) -> Config:
    """With the length of a trajectory."""
    rollout = config.rollout
    if rollout.rollout is not None:
        return config
    length = LONG_ROLLOUT if profits_from_long_trajectories(config, info) else rollout.steps
    return replace(config, rollout=replace(rollout, rollout=length))


def _num_envs(config: Config, info: EnvInfo) -> int:
    """Environments over all workers, where the user leaves that open."""
    if profits_from_long_trajectories(config, info):
        return max(1, DEFAULT_NUM_ENVS * DEFAULT_ROLLOUT // config.rollout.steps)
    return DEFAULT_NUM_ENVS


def _with_minibatches(config: Config, info: EnvInfo) -> LearnerConfig:
    """With the size and the number of minibatches: those of one sampling round, where neither says more."""
    learner, samples = config.learner, samples_per_round(config, info.num_agents)
    if learner.num_batches_per_epoch is None:
        size = learner.batch_size
        number = _number_of_minibatches(config, samples) if size is None else _number_of_size(size, config, samples)
        learner = replace(learner, num_batches_per_epoch=number)
    if learner.num_epochs is None:
        learner = replace(learner, num_epochs=epochs_for(learner))
    if learner.batch_size is not None:
        return learner
    batch_size = samples / learner.num_minibatches
    if batch_size.denominator != 1:
        raise ConfigError([_batch_size_problem(replace(config, learner=learner), info)])
    return replace(learner, batch_size=int(batch_size))


def _number_of_minibatches(config: Config, samples: Fraction) -> int:
    """The most that are equal and large enough; those of a recurrent policy are whole trajectories of a learner."""
    trajectories = samples / config.rollout.steps / config.learner.num_learners
    whole = trajectories if config.model.use_rnn else samples
    recipe = config.learner.recipe
    most = min(recipe.most_minibatches, int(samples / recipe.minibatch))
    return next((number for number in range(most, 1, -1) if (whole / number).denominator == 1), 1)


def _number_of_size(size: int, config: Config, samples: Fraction) -> int:
    """How many of this size are nearest to a sampling round and make whole trajectories, or whole rounds if they must.

    The nearest one if none do; it is refused when everything is known.
    """
    rollout, nearest = config.rollout.steps, max(1, round(samples / size))

    def fits(number: int) -> bool:
        dataset = Fraction(number * size)
        return dataset % rollout == 0 and (config.run.async_rl or dataset % samples == 0)

    numbers = sorted(range(1, max(2 * nearest, rollout) + 1), key=lambda number: abs(number * size - samples))
    return next(filter(fits, numbers), nearest)


def _with_inference(config: Config, policy_workers_per_policy: int) -> Config:
    return replace(config, inference=replace(config.inference, policy_workers_per_policy=policy_workers_per_policy))


def _acting(config: Config, info: EnvInfo, cores: int, step: StepTime | None) -> Config | None:
    """With rollout workers that act for themselves, if that suits: more of them where their groups are too large."""
    most = min(cores, MAX_DEFAULT_WORKERS)
    if step is not None and step.copies > 1:
        most = min(most, _most_that_pay(1))
    for least in range(1, most + 1):
        sized = _sized(_with_inference(config, 0), info, cores, step, least)
        if suits_acting(sized, info):
            return sized
    return None


def suits_acting(config: Config, info: EnvInfo) -> bool:
    """Whether rollout workers that act for themselves, with the sizes of `config`, suit the rest of it.

    They are faster than an inference process where the network is small and the CPU acts.
    """
    if config.run.device != "cpu" or config.run.serial_mode:
        return False
    rollout = config.rollout
    assert rollout.num_workers is not None
    if rollout.num_workers * config.groups_per_worker % config.learner.num_learners:
        return False  # two groups per worker may still be shared evenly
    return is_written_out(info, config.model) and is_small(info, config.model, rows_per_group(config, info.num_agents))


def _sized(config: Config, info: EnvInfo, cores: int, step: StepTime | None, least: int = 1) -> Config:
    """With workers, environments and groups; `least` workers if the environments suffice for them."""
    splits = config.groups_per_worker
    least, most = (1, 1) if config.run.serial_mode else (least, max(least, _most_workers(splits, cores, step)))
    rollout = _fill_workers(config.rollout, _num_envs(config, info), splits, least, most, config.learner.num_learners)
    if step is not None and config.rollout.num_envs_per_worker is None:
        rollout = _in_time(rollout, step, may_have_one=config.rollout.worker_num_splits is None)
    return replace(config, rollout=rollout)


def _most_workers(splits: int, cores: int, step: StepTime | None) -> int:
    """One for each core, more for environments that mostly wait, and fewer for those that hardly take any time.

    Environments that step as one wait together, so more workers would only make their groups smaller.
    """
    most: float = cores
    if step is not None:
        most = min(cores * step.waiting, DEFAULT_NUM_ENVS * step.wall_s / LEAST_GROUP_S / splits)
        if step.copies > 1:
            most = min(most, cores, _most_that_pay(splits))
    return max(1, min(round(most), MAX_DEFAULT_WORKERS))


def _most_that_pay(splits: int) -> int:
    """Workers whose groups are still large enough to step as one."""
    return max(1, DEFAULT_NUM_ENVS // (PAYS_FROM * splits))


def _fill_workers(
    rollout: RolloutConfig, num_envs: int, splits: int, least: int, most: int, num_learners: int
) -> RolloutConfig:
    workers, envs = rollout.num_workers, rollout.num_envs_per_worker
    unit = num_learners // math.gcd(num_learners, splits)  # of workers, so that learners share groups evenly
    if workers is None:
        # Every group the same size, and the same total on every machine: as many workers as divide it evenly.
        groups = -(-num_envs // splits)
        most = max(most, unit)
        if envs is not None:
            most = max(1, min(most, num_envs // envs))
        sizes = [*range(most, least - 1, -1), *range(most + 1, groups + 1), *range(least - 1, 0, -1)]
        fitting = [w for w in sizes if w % unit == 0 and (envs is not None or groups % w == 0)]
        workers = fitting[0] if fitting else max(unit, most // unit * unit)
    if envs is None:
        evenly = splits if rollout.num_workers is None or rollout.worker_num_splits else 2  # with each way of acting
        envs = -(-num_envs // (workers * evenly)) * evenly
    return replace(rollout, num_workers=workers, num_envs_per_worker=envs, worker_num_splits=splits)


def _in_time(rollout: RolloutConfig, step: StepTime, may_have_one: bool) -> RolloutConfig:
    """With fewer environments where a worker would not get through its first trajectories in time.

    Args:
        rollout: without None.
        step: how long one environment takes for a step and to begin.
        may_have_one: whether two groups of one environment may become one of one.
    """
    envs, splits = rollout.num_envs_per_worker, rollout.worker_num_splits
    assert envs is not None
    assert splits is not None
    if step.copies > 1:
        # Each group takes the whole time to begin, whatever its size, so at least half of the limit is left for steps.
        env_s, least = rollout.steps * step.wall_s, splits * PAYS_FROM
        limit_s = max(LONGEST_FIRST_ROUND_S - splits * step.start_s, LONGEST_FIRST_ROUND_S / 2)
    else:
        env_s, least, limit_s = step.start_s + rollout.steps * step.wall_s, splits, LONGEST_FIRST_ROUND_S
    while envs > least and envs * env_s > limit_s:
        envs = max(least, envs // 2 // splits * splits)
    if may_have_one and envs == splits == 2 and envs * env_s > limit_s:
        envs = splits = 1
    return replace(rollout, num_envs_per_worker=envs, worker_num_splits=splits)


def _batch_size_problem(config: Config, info: EnvInfo) -> str:
    rollout, learner = config.rollout, config.learner
    samples = samples_per_round(config, info.num_agents)
    other = ", or a --num_batches_per_epoch that divides them" if samples.denominator == 1 else ""
    return (
        f"num_batches_per_epoch={learner.num_batches_per_epoch} does not divide the {float(samples):.10g} transitions "
        f"of a sampling round ({rollout.num_workers} workers x {rollout.num_envs_per_worker} environments x "
        f"{info.num_agents} agents x rollout={rollout.steps}, over {config.run.num_policies} policies). So there is "
        f"no default for batch_size. Give --batch_size{other}."
    )


def one_each(config: Config, info: EnvInfo, refusal: str) -> Config:
    """The configuration with one environment in each process, because there cannot be a second one.

    Raises:
        ConfigError: values of the user ask for more than one.
    """
    rollout, run, evaluates = config.rollout, config.run, config.evaluation.eval_every_steps > 0
    obstacles = {
        f"num_envs_per_worker={rollout.num_envs_per_worker}": (rollout.num_envs_per_worker or 1) > 1,
        f"worker_num_splits={rollout.worker_num_splits}": (rollout.worker_num_splits or 1) > 1,
        f"serial_mode=True with num_workers={rollout.num_workers}": run.serial_mode and (rollout.num_workers or 1) > 1,
        f"film_every_steps={config.evaluation.film_every_steps}": config.evaluation.film_every_steps > 0,
        "serial_mode=True with eval_every_steps": run.serial_mode and evaluates,
        f"evaluation of num_policies={run.num_policies}": evaluates and run.num_policies > info.num_agents,
    }
    if asked := [obstacle for obstacle, is_true in obstacles.items() if is_true]:
        raise ConfigError(
            [
                f"{info.env_id} exists once per process: a second one raised {refusal}. Leave out what asks for more, "
                f"{' and '.join(asked)}: take --num_envs_per_worker=1 --worker_num_splits=1 and more --num_workers."
            ]
        )
    one = replace(rollout, num_envs_per_worker=1, worker_num_splits=1)
    return replace(config, rollout=replace(one, num_workers=1) if run.serial_mode else one)


def topology_of(config: Config, info: EnvInfo) -> Topology:
    """The sizes that follow from a resolved configuration."""
    rollout, run, inference_workers = config.rollout, config.run, config.inference.policy_workers_per_policy
    assert inference_workers is not None
    assert rollout.num_workers is not None
    return Topology(
        num_workers=rollout.num_workers,
        groups_per_worker=config.groups_per_worker,
        envs_per_group=envs_per_group(config),
        agents_per_env=info.num_agents,
        rollout=rollout.steps,
        slots_per_group=slots_per_group(
            trajectories_per_dataset(config) // config.learner.num_learners,
            rows_per_group(config, info.num_agents),
            rollout.num_workers * config.groups_per_worker // config.learner.num_learners,
            config.datasets_in_flight,
        ),
        num_policies=run.num_policies,
        inference_per_policy=inference_workers or rollout.num_workers,
        memory_size=config.model.memory_size,
        num_learners=config.learner.num_learners,
        workers_act=config.workers_act,
    )


def learner_threads(config: Config, info: EnvInfo, cores: int | None = None) -> int:
    """One, because the other cores belong to other roles; but with images the CPU spends nearly all its time there.

    Two threads on two cores, beside all other roles, learn 1.2 times as many images per second as one. SAC with two
    layers of 256 learned 0.6 times as much with two as with one.
    """
    architecture = config.model.encoder_conv_architecture
    has_images = any(image_layout(leaf, architecture) for leaf in info.observations.values())
    if not has_images or config.run.serial_mode or config.run.device != "cpu":
        return 1
    learners = config.run.num_policies * config.learner.num_learners
    return max(1, min(MOST_THREADS, (cores or usable_cores()) // learners))


def _least_rollout_workers(config: Config, topology: Topology, trajectories: int) -> int:
    """How many rollout workers fill batches: half of them, if the slots of so many hold a batch.

    A synchronous run needs all of them, and so do several learners, each of which has workers of its own.
    """
    if not config.run.async_rl or topology.num_learners > 1:
        return topology.num_workers
    each = topology.groups_per_worker * topology.slots_per_group * topology.rows
    needed = trajectories + topology.rows - math.gcd(trajectories, topology.rows)
    return max(-(-topology.num_workers // 2), -(-needed // each))
