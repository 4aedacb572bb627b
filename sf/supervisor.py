"""The main process: checks, prepares, starts the roles, watches them, and ends the run in one way whatever happened.

The order is the one that wastes nothing: what can be refused is refused before a directory is made, and a directory is
taken before a process is started. Signals only leave a note; the loop acts on it. The first SIGINT or SIGTERM stops in
order and saves, the second one kills.
"""

from __future__ import annotations

import errno
import gc
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing import connection
from typing import NamedTuple

from sf.callbacks import Callbacks
from sf.children import Processes
from sf.config import Config, ModelConfig, check, resolve, rows_per_group, wants_step_time
from sf.disposable import in_disposable_child
from sf.envs import EnvSource, find_env, probe_and_time
from sf.envs.step_time import StepTime
from sf.envs.vectorization import choose_vectorization
from sf.errors import ConfigError, EnvError, ExitCode, InternalError, LearnerLost, ResourceError, SfError
from sf.evaluator.last import evaluate_last
from sf.experiment import Experiment, expect_free
from sf.fork_server import ForkServer
from sf.models import AUTO, MakeEncoder, check_encoder, models_to_send, register_models
from sf.monitor import Monitor
from sf.monitor.console import Console
from sf.restarts import Restarts
from sf.role import RoleSpec
from sf.serial import SerialRoles
from sf.session import POLL_S, ExitReason, Session
from sf.signals import Signals, early_signals, noted_signals
from sf.spaces import EnvInfo
from sf.wiring import START_S, Shared, wire

PROBE_GRACE_S = 30.0
"""For a first look at an environment, in addition to what its calls may take."""
CALIBRATION_S = 0.3
"""How long an environment plays on its own before the sizes of the run are chosen."""

SIZES = "num_workers", "num_envs_per_worker", "worker_num_splits"
"""Fields that follow from the environment and the machine where the user has left them open."""
NOTHING_LEFT = errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM
"""What the kernel says when it gives no more files, processes or memory."""

ChangeSpecs = Callable[[Shared, list[RoleSpec]], list[RoleSpec]]


class Outcome(NamedTuple):
    """How a run ended in order."""

    code: ExitCode
    reason: str


class Prepared(NamedTuple):
    """A configuration that nothing refuses any more."""

    config: Config
    """Resolved."""
    source: EnvSource
    info: EnvInfo
    early_signals: list[int]
    """Which arrived meanwhile and did not end the program."""


def train(config: Config, callbacks: Callbacks | None = None) -> Outcome:
    """Runs a training from its configuration to its end.

    Args:
        config: not resolved.
        callbacks: told what happens.

    Raises:
        SfError: the run was refused, or ended because something broke; its `exit_code` says what kind.
    """
    check(config)
    expect_free(config.run.train_dir, config.run.experiment)  # again when it is locked, after a look at the environment
    with ForkServer(config.faults.max_restarts) as fork_server:
        return train_prepared(prepare(config, fork_server), callbacks, fork_server=fork_server)


def train_prepared(
    prepared: Prepared,
    callbacks: Callbacks | None = None,
    change: ChangeSpecs | None = None,
    fork_server: ForkServer | None = None,
) -> Outcome:
    """Runs a training that nothing refuses.

    Args:
        prepared: configuration and environment.
        callbacks: told what happens.
        change: returns other specifications for the wired roles, for whoever wants to look into them.
        fork_server: of the caller, who closes it; None for one of its own.

    Raises:
        SfError: the run ended because something broke; its `exit_code` says what kind.
    """
    config, source, info, early = prepared
    if fork_server is None:
        with ForkServer(config.faults.max_restarts) as own:
            return train_prepared(prepared, callbacks, change, own)
    with noted_signals(config.run.serial_mode, early) as signals:
        experiment = Experiment(config.run.train_dir, config.run.experiment, config.run.restart_behavior)
        restarts, began_s = Restarts(config.faults.max_restarts), time.monotonic()
        if experiment.set_aside:
            Console().line(experiment.set_aside)
        try:
            while True:
                shared, specs = wire(config, info, source, experiment)
                if change is not None:
                    specs = change(shared, specs)
                try:
                    return run(config, shared, specs, experiment, signals, fork_server, callbacks)
                except LearnerLost as lost:
                    may_begin_again = config.faults.restart_learner and not signals.received
                    delay_s = restarts.delay_s(time.monotonic(), shared.has_trained) if may_begin_again else None
                    if delay_s is None:
                        raise
                    Console().line(f"{lost} The run begins again from its last checkpoint, or anew if there is none.")
                    connection.wait([signals.fileno()], delay_s)
                    config = _for_the_rest(prepared.config, time.monotonic() - began_s)
                    experiment.begin()
                del shared, specs  # its memory is needed again
                gc.collect()
        except OSError as error:
            if error.errno not in NOTHING_LEFT:
                raise
            raise _nothing_left(error) from error
        finally:
            experiment.close()


def _for_the_rest(config: Config, seconds: float) -> Config:
    """The configuration of a run that has lasted so long already."""
    left_s = max(1, config.run.train_for_seconds - math.ceil(seconds))
    return replace(config, run=replace(config.run, train_for_seconds=left_s))


def prepare(config: Config, fork_server: ForkServer | None = None) -> Prepared:
    """Refuses what can be refused, looks at the environment, and fills in what follows from it.

    Args:
        config: not resolved.
        fork_server: begins to load torch as soon as only the environment can still be refused.

    Raises:
        SfError: the configuration or the environment is refused.
    """
    check(config)
    check_encoder(config.model.encoder)
    early = early_signals()  # until there is something to save
    source = find_env(config.run.env, config.run.env_arguments)
    has_core_left = len(os.sched_getaffinity(0)) > 1  # else it would only disturb the measurement
    if fork_server is not None and has_core_left and not config.run.serial_mode:
        fork_server.start()
    seconds = CALIBRATION_S if wants_step_time(config) else 0.0
    what, faults = f"A first look at {source.env_id}", config.faults
    timeout_s = PROBE_GRACE_S + faults.env_init_timeout + 2 * faults.env_reset_timeout + faults.env_step_timeout
    drop = faults.on_nonfinite == "drop"
    look = in_disposable_child(probe_and_time, source, seconds, drop, timeout_s=timeout_s, what=what)
    info, step = look.info, look.step_time
    if config.run.device == "gpu":
        Console().plain(f"Accelerators: {', '.join(_found_accelerators())}.")
    resolved = resolve(config, info, len(os.sched_getaffinity(0)), step if seconds else None)
    check(resolved, info)
    if config.model.encoder != AUTO:
        _look_at_encoder(config.model, info)
    if chosen := _chosen_flags(config, resolved):
        measured = [_step_time(step)] if seconds else []
        Console().plain(" ".join([*measured, f"Chosen: {chosen}"]))
    config, source = vectorized(resolved, source, info)
    if look.made_in_s > faults.env_init_timeout and not config.run.serial_mode:
        Console().plain(
            f"Warning: the constructor of {source.env_id} took {look.made_in_s:.3g} s, and rollout workers in which it "
            f"takes longer than --env_init_timeout={faults.env_init_timeout:g} are replaced. Raise the limit if it "
            "takes as long every time."
        )
    for note in (*look.notes, *info.notes(config.model.encoder_conv_architecture)):
        Console().plain(note)
    if note := _note_on_acting(config, info):
        Console().plain(note)
    return Prepared(config, source, info, early)


def _note_on_acting(config: Config, info: EnvInfo) -> str:
    """What somebody should know who has rollout workers act with a large network."""
    if not config.workers_act:
        return ""
    from sf.small_network import is_small

    if is_small(info, config.model, rows_per_group(config, info.num_agents)):
        return ""
    return (
        "Rollout workers act with NumPy (--policy_workers_per_policy=0), which takes longer than torch for a network "
        "and groups of this size. Try the same without this flag."
    )


def _look_at_encoder(config: ModelConfig, info: EnvInfo) -> None:
    """Builds a network with an encoder of the user in a process of its own, because that takes torch.

    Raises:
        ConfigError: it cannot be imported, or does not do what an encoder has to do.
    """
    what = f"A first look at the encoder {config.encoder}"
    try:
        problems = in_disposable_child(_problems_of, config, info, models_to_send(), timeout_s=START_S, what=what)
    except EnvError as error:  # what ends badly in such a process is an environment elsewhere
        raise ConfigError([f"{error} Build it on its own first."]) from None
    if problems:
        raise ConfigError(problems)


def _problems_of(config: ModelConfig, info: EnvInfo, models: Mapping[str, MakeEncoder]) -> Sequence[str]:
    from sf.policy import ActorCritic

    register_models(models)
    try:
        ActorCritic(info, config)
    except ConfigError as error:
        return error.problems
    return ()


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
    from sf.device import accelerators

    return accelerators()


def _step_time(step: StepTime) -> str:
    """What was measured."""
    waits = f", {1e6 * step.cpu_s:.3g} of them computing" if step.waits else ""
    return f"One environment takes {1e6 * step.wall_s:.3g} us for a step{waits}."


def _chosen_flags(given: Config, resolved: Config) -> str:
    """The flags that make the same choice again."""
    flags = [f"--{name}={getattr(resolved.rollout, name)}" for name in SIZES if getattr(given.rollout, name) is None]
    if given.inference.policy_workers_per_policy is None:
        flags.append(f"--policy_workers_per_policy={resolved.inference.policy_workers_per_policy}")
    return " ".join(flags)


def vectorized(config: Config, source: EnvSource, info: EnvInfo) -> tuple[Config, EnvSource]:
    """The configuration with the vectorization that fits, and the source of its environments."""
    rollout = config.rollout
    assert rollout.num_envs_per_worker is not None, "the configuration is resolved"
    envs_per_group = rollout.num_envs_per_worker // config.groups_per_worker
    wanted, policies = rollout.vectorization, config.run.num_policies
    if config.run.serial_mode and wanted == "auto":
        wanted = "none"  # what steps as one cannot be brought back to where it was
    vectorization, source = choose_vectorization(wanted, source, info, envs_per_group, policies)
    return replace(config, rollout=replace(rollout, vectorization=vectorization)), source


def run(
    config: Config,
    shared: Shared,
    specs: Sequence[RoleSpec],
    experiment: Experiment,
    signals: Signals,
    fork_server: ForkServer,
    callbacks: Callbacks | None = None,
) -> Outcome:
    """Runs wired roles until there is a reason to stop; normal end, error and signal share this way out."""
    roles = SerialRoles(shared) if config.run.serial_mode else Processes(shared, config.faults, fork_server)
    monitor = Monitor(config, experiment.path, shared.topology.agents_per_env)
    session = Session(config, shared, monitor, callbacks or Callbacks(), roles.take_messages)
    reason: ExitReason | None = None
    error: BaseException | None = None
    try:
        roles.start(specs)
        if config.run.serial_mode:
            session.recall_episodes()
        monitor.watch(roles.pids, lambda: roles.faults() | session.faults())
        reason = _watch(roles, session, signals, lambda: _note_start(experiment, config))
        session.request_best()
    except BaseException as failure:  # whatever a callback raises, nobody may be left running
        error = failure
        session.callbacks = Callbacks()  # it would only be raised again
    problems = roles.stop(signals)
    if error is None and problems and not signals.is_urgent:
        error = InternalError("The run did not end in order: " + "; ".join(problems))
    controls_are_well = roles.ended_well("learner")
    try:
        if error is None and controls_are_well and not signals.received and session.lacks_evaluation():
            session.take(evaluate_last(next(spec for spec in specs if spec.kind == "eval"), signals))
        session.read_last(controls_are_well)
    except Exception as failure:
        error = error or failure
    if isinstance(error, OSError) and error.errno in NOTHING_LEFT:
        error = _nothing_left(error)
    code = _exit_code(reason, error)
    why = reason.value if reason and error is None else f"{type(error).__name__}: {error}"
    session.finish(why, code)
    if error is not None:
        raise error
    return Outcome(code, why)


def _note_start(experiment: Experiment, config: Config) -> None:
    """Writes the configuration, and says what a run that is continued does differently."""
    if changes := experiment.write_config(config.to_json()):
        Console().line(f"Settings that differ from those of the last start: {', '.join(changes)}")


def _nothing_left(error: OSError) -> ResourceError:
    told = ResourceError(
        f"The machine gives no more files, processes or memory: {error}. Raise the limit (ulimit -n, ulimit -u) or use "
        "fewer --num_workers."
    )
    told.__cause__ = error
    return told


def _watch(
    roles: SerialRoles | Processes, session: Session, signals: Signals, on_ready: Callable[[], None]
) -> ExitReason:
    """The main loop; `on_ready` is called when every role is built, so that nothing has refused to continue."""
    next_poll = time.monotonic()
    has_begun = False
    while True:
        roles.advance(next_poll - time.monotonic() if roles.is_ready else POLL_S, signals)
        if signals.look_for_parent():
            Console().line("What started this run is gone, so it stops. Start it with nohup or setsid to let it go on.")
        if signals.reason is not None:
            return signals.reason
        if roles.is_ready and not has_begun:
            has_begun = True
            on_ready()
        if roles.is_ready and (time.monotonic() >= next_poll or roles.has_news):
            if (reason := session.poll()) is not None:
                return reason
            next_poll = time.monotonic() + POLL_S  # however long the callbacks took: in serial mode the roles work now


def _exit_code(reason: ExitReason | None, error: BaseException | None) -> ExitCode:
    if isinstance(error, SfError):
        return error.exit_code
    if error is not None:
        return ExitCode.INTERNAL
    if reason is ExitReason.SIGINT:
        return ExitCode.SIGINT
    return ExitCode.SIGTERM if reason is ExitReason.SIGTERM else ExitCode.FINISHED
