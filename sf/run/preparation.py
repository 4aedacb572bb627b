"""Before a run: refuses what can be refused, looks at the environment, and fills in what follows from it.

Anything that may hang, crash or take torch is looked at in a process of its own. Nothing is written yet.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from sf.config import Config, changed_algorithm_flags, check, envs_per_group, note_on_unread_flags, unread_by_ours
from sf.config.convolutions import notes_on_pictures
from sf.config.roles import DEFAULT_ROLLOUT
from sf.console import Console
from sf.envs import EnvSource, find_env
from sf.envs.probe import FirstLook
from sf.envs.step_time import StepTime
from sf.errors import ConfigError, EnvError, ResourceError, UsageError
from sf.machine.cores import usable_cores
from sf.machine.limits import ensure_shared_memory, ensure_store_order, refusals_told, threads_beyond_cores
from sf.machine.rank import ALONE, Rank
from sf.monitor.expected_lag import forecast
from sf.plugins import ALGORITHMS, ENCODERS, Sent, plugins_to_send, receive_plugins
from sf.processes.disposable import in_disposable_child
from sf.processes.fork_server import ForkServer
from sf.processes.signals import early_signals, parent
from sf.processes.telling import told_if_slow
from sf.run.earlier import with_earlier_network
from sf.run.films import expect_films
from sf.run.first_look import look_in_child, note_on_single, vectorization_of
from sf.run.ranks import WarningsOnly, hear_start, numbered, refuse_with_ranks
from sf.run.sizes import Sizes, decide
from sf.run.trackers import wanted_trackers
from sf.run.updates import choose_updates, note_on_updates
from sf.run.wiring import START_S
from sf.spaces import EnvInfo

SIZES = "num_workers", "num_envs_per_worker", "worker_num_splits"
"""Fields that follow from the environment and the machine where the user has left them open."""


class Prepared(NamedTuple):
    """A configuration that nothing refuses any more."""

    config: Config
    """Resolved."""
    given: Config
    """As it was before."""
    source: EnvSource
    info: EnvInfo
    early_signals: list[int]
    """Which arrived meanwhile and did not end the program."""
    started_by: int | None
    """Process whose end ends the run, see `sf.processes.signals.parent`."""
    rank: Rank = ALONE
    """Rank of this run among those that train together."""
    num_earlier_starts: int | None = None
    """Runs that this one continues, if rank 0 knows it and not this rank."""


@refusals_told()
def prepare(config: Config, fork_server: ForkServer | None = None, rank: Rank = ALONE) -> Prepared:
    """Refuses what can be refused, looks at the environment, and fills in what follows from it.

    Args:
        config: not resolved.
        fork_server: begins to load torch as soon as only the environment and its settings can be refused.
        rank: of this run; all but the first take over what rank 0 decides.

    Raises:
        SfError: the configuration or the environment is refused.
    """
    given = config
    started_by = parent() if rank.is_alone else os.getppid()  # torchrun gives each rank a session of its own
    check(config)
    refuse_with_ranks(config, rank)
    wanted_trackers(config.run)
    ENCODERS.check(config.model.encoder)
    ALGORITHMS.check(config.learner.algorithm)
    _expect_compiler(config)
    if not config.run.serial_mode:
        ensure_store_order()
        ensure_shared_memory()
    early = early_signals()  # until there is something to save
    with told_if_slow(f"the import of what makes {config.run.env}"):
        source = find_env(config.run.env, config.run.env_arguments, config.run.max_episode_steps)
    if config.run.serial_mode:
        _expect_float32()
    has_core_left = usable_cores() > 1  # else it would only disturb the measurement
    if fork_server is not None and has_core_left and not config.run.serial_mode:
        fork_server.start()
    if config.evaluation.film_every_steps and rank.is_first:
        expect_films(source)
    look = look_in_child(config, source)
    info = look.info
    console = Console() if rank.is_first else WarningsOnly()
    if config.run.device == "gpu":
        console.plain(f"Accelerators: {', '.join(_found_accelerators())}.")
    starts: int | None = None
    if rank.is_first:
        resolved = decide(with_earlier_network(config), look, rank.share_of(usable_cores()))
        rank = rank if rank.is_alone else numbered(rank)
    else:
        resolved, starts, number = hear_start(rank, config)
        rank = replace(rank, start=number)
    check(resolved, info)
    note = _look_at_plugins(resolved, changed_algorithm_flags(config.learner), info)
    if chosen := _chosen_flags(config, resolved):
        measured = [_step_time(look.step_time)] if look.is_timed else []
        console.plain(" ".join([*measured, f"Chosen: {chosen}"]))
    if rank.is_first and (learning := _updates(config, resolved, look, rank)):
        console.plain(learning)
    for line in (note, note_on_unread_flags(config.learner, unread_by_ours(config.learner))):
        if line:
            console.plain(line)
    if not look.refutes_vectorization and (left := note_on_single(resolved, source, info, envs_per_group(resolved))):
        console.plain(left)
    config, source = vectorized(resolved, replace(source, autoreset_mode=look.autoreset_mode), info)
    for note in _notes(config, source, look):
        console.plain(note)
    return Prepared(config, given, source, info, early, started_by, rank, starts)


def _expect_float32() -> None:
    """Refuses another dtype in the process in which a serial run trains; other processes choose for themselves.

    Raises:
        UsageError: tensors of this program have another dtype by default.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_default_dtype() is not torch.float32:
        raise UsageError(
            f"The default dtype of torch is {torch.get_default_dtype()} in this process, in which a serial run trains "
            "networks of float32. Leave torch.set_default_dtype out and give your own tensors their dtype, or train "
            "with --serial_mode=False."
        )


def _expect_compiler(config: Config) -> None:
    """Checks a new run only: a policy that was trained with one is used without one.

    Raises:
        ConfigError: there is none, and one is needed.
    """
    compiler = os.environ.get("CXX", "g++")  # as torch looks for it
    if config.learner.torch_compile and config.run.device == "cpu" and shutil.which(compiler) is None:
        raise ConfigError(
            [
                f"torch_compile=True needs a C++ compiler, but there is no {compiler}. Install one, name it in the "
                "environment variable CXX, or use --torch_compile=False."
            ]
        )


def _notes(config: Config, source: EnvSource, look: FirstLook) -> Iterator[str]:
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


def _look_at_plugins(config: Config, changed: list[str], info: EnvInfo) -> str:
    """Tries an encoder and an algorithm of the user in a process of its own, because that takes torch.

    A serial run has torch anyway, and constructs them in this process.

    Returns:
        A sentence about flags that the algorithm does not read, or nothing.

    Raises:
        ConfigError: one cannot be imported, or does not do what it has to do.
    """
    used = {ENCODERS: config.model.encoder, ALGORITHMS: config.learner.algorithm}
    texts = {"algorithm": config.learner.algorithm_kwargs, "encoder": config.model.encoder_kwargs}
    settings = {kind: json.loads(text) for kind, text in texts.items()}
    theirs = [
        f"the {plugins.kind} {name}"
        for plugins, name in used.items()
        if not plugins.is_ours(name) or settings[plugins.kind]
    ]
    if not theirs:
        return ""
    if config.run.serial_mode:
        is_ours = ALGORITHMS.is_ours(config.learner.algorithm)
        return "" if not any(settings.values()) and (is_ours or not changed) else _note_on_flags(config, changed, info)
    what = f"A first look at {' and '.join(theirs)}"
    try:
        found = in_disposable_child(
            _try_plugins, config, changed, info, plugins_to_send(), timeout_s=START_S, what=what
        )
    except EnvError as error:  # what ends badly in such a process is an environment elsewhere
        raise ConfigError([str(error)]) from None
    if isinstance(found, str):
        return found
    raise ConfigError(found)


def _try_plugins(config: Config, changed: list[str], info: EnvInfo, plugins: Sent) -> str | tuple[str, ...]:
    """A note, or problems."""
    receive_plugins(plugins)
    try:
        return _note_on_flags(config, changed, info)
    except ConfigError as error:
        return error.problems


def _note_on_flags(config: Config, changed: list[str], info: EnvInfo) -> str:
    """Constructs a policy and an algorithm; says which flags that one does not read.

    Raises:
        ConfigError: one of them does not do what it has to do.
    """
    import torch

    from sf.learner.off_policy import OffPolicy
    from sf.learner.off_policy_trial import try_update
    from sf.learner.trial import algorithm_of, begin, loss_terms_of, unread_flags
    from sf.nets.device import accelerators
    from sf.policy import ActorCritic

    device = torch.device(accelerators()[0] if config.run.device == "gpu" else "cpu")
    policy = ActorCritic(info, config.model, device, config.run.bf16)
    algorithm = algorithm_of(config.learner)
    if isinstance(algorithm, OffPolicy):
        try_update(algorithm, policy, config.learner)
        return ""
    begin(algorithm, policy)
    loss_terms_of(algorithm, policy)
    if ALGORITHMS.is_ours(config.learner.algorithm):
        return ""
    return note_on_unread_flags(config.learner, unread_flags(config.learner, policy, changed))


def _found_accelerators() -> list[str]:
    """Their names, found by a process of its own, because it takes torch.

    Raises:
        ResourceError: there are none, or looking for them does not end well.
    """
    try:
        return in_disposable_child(_look_for_accelerators, timeout_s=START_S, what="A first look at the accelerators")
    except EnvError as error:  # what ends badly in such a process is an environment elsewhere
        raise ResourceError(
            f"Torch could not say within {START_S:.0f} s which accelerators there are, or died of it ({error}). Try "
            "python -c 'import torch; print(torch.accelerator.device_count())', or use --device=cpu."
        ) from None


def _look_for_accelerators() -> list[str]:
    from sf.nets.device import accelerators

    return accelerators()


def _step_time(step: StepTime) -> str:
    """The measurement, as a sentence."""
    num_envs = step.copies
    waits = f", {1e6 * step.cpu_s * num_envs:.3g} of them computing" if step.waits else ""
    who = "One environment takes" if num_envs == 1 else f"{num_envs} environments that step as one take"
    return f"{who} {1e6 * step.wall_s * num_envs:.3g} us for a step{waits}."


def _updates(given: Config, resolved: Config, look: FirstLook, rank: Rank) -> str:
    """How much is learned from each frame, and why, as a sentence."""
    step = look.step_time if look.is_timed else None
    return note_on_updates(given, resolved, choose_updates(given, look.info, rank.share_of(usable_cores()), step))


def _chosen_flags(given: Config, resolved: Config) -> str:
    """The flags that make the same choice again."""
    flags = [f"--{name}={getattr(resolved.rollout, name)}" for name in SIZES if getattr(given.rollout, name) is None]
    if given.rollout.rollout is None and resolved.rollout.rollout != DEFAULT_ROLLOUT:
        flags.append(f"--rollout={resolved.rollout.rollout}")
    if given.inference.policy_workers_per_policy is None:
        flags.append(f"--policy_workers_per_policy={resolved.inference.policy_workers_per_policy}")
    if given.rollout.vectorization != resolved.rollout.vectorization:
        flags.append(f"--vectorization={resolved.rollout.vectorization}")
    return " ".join(flags)


def vectorized(config: Config, source: EnvSource, info: EnvInfo) -> tuple[Config, EnvSource]:
    """The configuration with the vectorization that fits, and the source of its environments."""
    vectorization, source = vectorization_of(config, source, info, envs_per_group(config))
    return replace(config, rollout=replace(config.rollout, vectorization=vectorization)), source
