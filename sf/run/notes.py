"""Sentences before a run: what was chosen, and what is no error and may be one."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sf.config import Config
from sf.config.convolutions import notes_on_pictures
from sf.config.long_vectors import notes_on_vectors
from sf.config.roles import DEFAULT_ROLLOUT
from sf.envs import EnvSource
from sf.envs.probe import FirstLook
from sf.envs.step_time import StepTime, in_us
from sf.machine.limits import threads_beyond_cores
from sf.monitor.expected_lag import forecast
from sf.run.topology import Sizes

SIZES = "num_workers", "num_envs_per_worker", "worker_num_splits"
"""Fields that follow from the environment and the machine where the user has left them open."""


def notes(config: Config, source: EnvSource, look: FirstLook) -> Iterator[str]:
    """Sentences about what is no error and may be one."""
    info, limit_s = look.info, config.faults.env_init_timeout
    if look.made_in_s > limit_s and not config.run.serial_mode:
        yield (
            f"Warning: the constructor of {source.env_id} took {look.made_in_s:.3g} s, and rollout workers in which it "
            f"takes longer than --env_init_timeout={limit_s:g} are replaced. Raise the limit if it takes as long every "
            "time."
        )
    if not config.run.serial_mode:
        assert config.rollout.num_workers is not None
        yield from threads_beyond_cores(config.rollout.num_workers)
    sizes = Sizes.of(config, info)
    yield forecast(config, info.num_agents, sizes.batches_held)
    if sentence := note_on_batches_held(config, sizes):
        yield sentence
    if look.refuses_second:
        yield (
            f"Each process has one {source.env_id}, because a second one beside it raised {look.refuses_second}. For "
            "more of them raise --num_workers."
        )
    run = config.run
    if math.inf == run.frame_limit == run.time_limit_s and run.stop_at_reward is None:
        yield "No flag ends this run: Ctrl-C does, and saves it (--train_for_env_steps, --stop_at_reward)."
    yield from look.notes
    for name, number in look.coarse.items():
        if not info.observations[name].is_wide:
            advice = "Return float64, of which the running mean is subtracted first, or subtract it in the environment."
        elif config.model.normalize_input:
            continue  # the running mean is subtracted first
        else:
            advice = "Use --normalize_input=True, or subtract a number of that size with --obs_subtract_mean."
        yield f"Warning: {source.env_id} returned an observation {name!r} with {number}. {advice}"
    yield from info.notes(config.model.encoder_conv_architecture)
    yield from notes_on_pictures(info, config.model)
    yield from notes_on_vectors(info, config.model)
    model = config.model
    constants = {"obs_subtract_mean": model.obs_subtract_mean != 0, "obs_scale": model.obs_scale != 1}
    given = " and ".join(f"--{name}={getattr(model, name):g}" for name, is_set in constants.items() if is_set)
    if model.normalize_input and given:
        yield (
            f"{given} shift and scale no observation that running statistics normalize. With --normalize_input=False "
            "they do."
        )
    if not config.workers_act:
        return
    from sf.config.written_out import is_small

    if not is_small(info, config.model, sizes.topology.rows):
        yield (
            "Rollout workers act with NumPy (--policy_workers_per_policy=0), which takes longer than torch for a "
            "network and groups of this size. Try the same without this flag."
        )


def note_on_batches_held(config: Config, sizes: Sizes) -> str:
    """A sentence where more batches are held than the configuration says, else nothing."""
    topology, learner = sizes.topology, config.learner
    if sizes.batches_held <= config.datasets_in_flight:
        return ""
    return (
        f"Warning: up to {float(sizes.batches_held):.3g} batches are collected before sampling pauses, more than "
        f"num_batches_to_accumulate={config.datasets_in_flight}, and policy lag grows with them. Environments collect "
        f"whole trajectories: there is room for {topology.num_slots * topology.rows} of rollout={topology.rollout} "
        f"steps, and a batch (batch_size={learner.batch_size} x num_batches_per_epoch={learner.num_minibatches}) takes "
        f"{sizes.trajectories}. Larger batches or fewer environments keep to the number."
    )


def note_on_step_time(step: StepTime) -> str:
    """The measurement, as a sentence."""
    num_envs = step.copies
    waits = f", {in_us(step.cpu_s * num_envs)} of them computing" if step.waits else ""
    who = "One environment takes" if num_envs == 1 else f"{num_envs} environments that step as one take"
    return f"{who} {in_us(step.wall_s * num_envs)} us for a step{waits}."


def chosen_flags(given: Config, resolved: Config) -> str:
    """The flags that make the same choice again."""
    flags = [f"--{name}={getattr(resolved.rollout, name)}" for name in SIZES if getattr(given.rollout, name) is None]
    if given.rollout.rollout is None and resolved.rollout.rollout != DEFAULT_ROLLOUT:
        flags.append(f"--rollout={resolved.rollout.rollout}")
    if given.inference.policy_workers_per_policy is None:
        flags.append(f"--policy_workers_per_policy={resolved.inference.policy_workers_per_policy}")
    if given.rollout.vectorization != resolved.rollout.vectorization:
        flags.append(f"--vectorization={resolved.rollout.vectorization}")
    return " ".join(flags)
