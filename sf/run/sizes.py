"""How many of everything a run has: decided here and nowhere else.

`decide` fills in what the user has left open, from one look at the environment and the number of cores. `Sizes` follow
from a configuration without gaps; they are computed once and handed on.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from fractions import Fraction

from sf.config import (
    Config,
    LearnerConfig,
    rows_per_group,
    samples_per_round,
)
from sf.config.written_out import is_small, is_written_out
from sf.envs.probe import FirstLook
from sf.envs.step_time import StepTime
from sf.envs.teams import seating
from sf.errors import ConfigError
from sf.run.groups import (
    MAX_DEFAULT_WORKERS,
    most_that_pay,
    sized,
    with_one_simulator,
)
from sf.run.tensors import with_tensors
from sf.run.updates import (
    LEAST_TRAJECTORIES,
    LONG_ROLLOUT,
    choose_updates,
    epochs_for,
    profits_from_long_trajectories,
    with_updates,
)
from sf.spaces import EnvInfo


def decide(config: Config, look: FirstLook, cores: int, rank_is_alone: bool = True) -> Config:
    """The configuration without None, see `resolve`; fitted to what a look at the environment has found.

    Raises:
        ConfigError: the batch size cannot be derived, or more environments are asked for than there can be.
    """
    if look.refuses_second:
        config = one_each(config, look.info, look.refuses_second)
    if look.in_tensors and not look.refutes_vectorization:
        config = with_one_simulator(with_tensors(config, look.info, rank_is_alone))
    has_clock = look.is_timed and config.rollout.vectorization != "tensors"  # which takes turns with the learner
    resolved = resolve(config, look.info, cores, look.step_time if has_clock else None)
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
        config = acting or sized(_with_inference(config, 1), info, cores, step)
    else:
        config = sized(config, info, cores, step, least=max(1, config.inference.policy_workers_per_policy))
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


def _with_minibatches(config: Config, info: EnvInfo) -> LearnerConfig:
    """With the size and the number of minibatches: those of one sampling round, where neither says more.

    Each of several policies learns from as many transitions as one alone, so that its updates cost what those cost.
    """
    learner, samples = config.learner, config.num_shares * samples_per_round(config, info.num_agents)
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
    whole, recipe = trajectories if config.model.use_rnn else samples, config.learner.recipe
    most = min(recipe.most_minibatches, int(samples / recipe.minibatch))
    if config.model.use_rnn:
        most = min(most, int(trajectories / LEAST_TRAJECTORIES))
    return next((number for number in range(most, 1, -1) if (whole / number).denominator == 1), 1)


def _number_of_size(size: int, config: Config, samples: Fraction) -> int:
    """How many of this size are nearest to a sampling round and make whole trajectories, or whole rounds if they must.

    The nearest one if none do; it is refused when everything is known.
    """
    rollout, nearest = config.rollout.steps, max(1, round(samples / size))

    def fits(number: int) -> bool:
        dataset = Fraction(number * size)
        needs_rounds = not config.run.async_rl or config.overlaps
        return dataset % rollout == 0 and not (needs_rounds and dataset % samples)

    numbers = sorted(range(1, max(2 * nearest, rollout) + 1), key=lambda number: abs(number * size - samples))
    return next(filter(fits, numbers), nearest)


def _with_inference(config: Config, policy_workers_per_policy: int) -> Config:
    return replace(config, inference=replace(config.inference, policy_workers_per_policy=policy_workers_per_policy))


def _acting(config: Config, info: EnvInfo, cores: int, step: StepTime | None) -> Config | None:
    """With rollout workers that act for themselves, if that suits: more of them where their groups are too large."""
    most = min(cores, MAX_DEFAULT_WORKERS)
    if step is not None and step.copies > 1:
        most = min(most, most_that_pay(1))
    for least in range(1, most + 1):
        with_workers = sized(_with_inference(config, 0), info, cores, step, least)
        if suits_acting(with_workers, info):
            return with_workers
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


def _batch_size_problem(config: Config, info: EnvInfo) -> str:
    rollout, learner = config.rollout, config.learner
    samples = config.num_shares * samples_per_round(config, info.num_agents)
    return (
        f"num_batches_per_epoch={learner.num_batches_per_epoch} does not divide the {samples} transitions of a "
        f"sampling round ({rollout.num_workers} workers x {rollout.num_envs_per_worker} environments x "
        f"{info.num_agents} agents x rollout={rollout.steps}). So there is no default for batch_size. Give "
        "--batch_size, or a --num_batches_per_epoch that divides them."
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
        f"evaluation of num_policies={run.num_policies}": evaluates
        and run.num_policies > seating(config.mapping, info).max() + 1,
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
