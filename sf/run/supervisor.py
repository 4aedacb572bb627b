"""The main process: checks, prepares, starts the roles, watches them, and ends the run in one way after any event.

The order wastes nothing. Configurations are refused before a directory is made, and a directory is taken before a
process is started. Signals only leave a note; the loop acts on it. The first stop signal ends the run in order
and saves; a second SIGINT or SIGTERM kills.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from multiprocessing import connection
from typing import NamedTuple

from sf.config import Config, check, trajectories_per_dataset
from sf.config.effects import without_effect
from sf.console import Console, forget_unlogged, logged, speak_for, spoke_s
from sf.errors import CheckpointError, ExitCode, InternalError, LearnerLost, LostDirectory, SfError
from sf.machine.limits import as_refusal, refusals_told
from sf.machine.origin import Origin, origin_of
from sf.machine.rank import rank_of
from sf.monitor import Monitor
from sf.monitor.expected_lag import expected_lag
from sf.processes.restarts import Restarts
from sf.processes.servers import ForkServers
from sf.processes.signals import Signals, noted_signals
from sf.processes.spare import Spares
from sf.processes.telling import Pace
from sf.run.callbacks import Callbacks
from sf.run.children import UNKILLABLE, Processes
from sf.run.directors import director_of
from sf.run.finished import note_on_finished
from sf.run.last_look import look_at_last_policy
from sf.run.preparation import Prepared, prepare
from sf.run.ranks import WarningsOnly, own_directory, say_start
from sf.run.reasons import ExitReason
from sf.run.serial import SerialRoles
from sf.run.session import POLL_S, Session
from sf.run.trackers import trackers_beside
from sf.run.wiring import Shared, wire
from sf.shared.role import RoleSpec
from sf.storage.compared import EarlierStart
from sf.storage.experiment import CONSOLE_LOG, Experiment, expect_free
from sf.storage.given import given_at
from sf.storage.leftovers import collect_all_leftovers
from sf.storage.unsaved import frames_not_saved

LOOK_S = 5.0
"""Between two looks whether the directory of the run is still its own."""
ChangeSpecs = Callable[[Shared, list[RoleSpec]], list[RoleSpec]]


class Outcome(NamedTuple):
    """How a run ended in order."""

    code: ExitCode
    reason: str


def train(config: Config, callbacks: Callbacks | None = None, spares: Spares | None = None) -> Outcome:
    """Runs a training from its configuration to its end.

    Args:
        config: not resolved.
        callbacks: told what happens.
        spares: processes that load already what the run needs, closed by the caller.

    Raises:
        SfError: the run was refused, or ended because something broke; its `exit_code` says what kind.
    """
    rank = rank_of(os.environ)
    speak_for(rank.rank)
    forget_unlogged()
    check(config)
    if rank.is_first:
        expect_free(config.run.train_dir, config.run.experiment)  # again when it is locked, when the rest is prepared
    # Ranks of one machine see the same files, and so the same answer. Elsewhere the learners find out.
    if rank.local_world_size == rank.world_size and (note := note_on_finished(config)):
        (Console() if rank.is_first else WarningsOnly()).line(note)
        return Outcome(ExitReason.ENV_STEPS.code, ExitReason.ENV_STEPS.value)
    with ForkServers(spares) as servers:
        return train_prepared(prepare(config, servers, rank), callbacks, servers=servers)


@refusals_told()
def train_prepared(
    prepared: Prepared,
    callbacks: Callbacks | None = None,
    change: ChangeSpecs | None = None,
    servers: ForkServers | None = None,
) -> Outcome:
    """Runs a training that nothing refuses.

    Args:
        prepared: configuration and environment.
        callbacks: told what happens.
        change: returns other specifications for the wired roles, for a caller that looks into them.
        servers: of the caller, which closes them; None for some of its own.

    Raises:
        SfError: the run ended because something broke; its `exit_code` says what kind.
    """
    config, given, source, info, early, started_by, rank, earlier_starts, fields, _ = prepared
    if servers is None:
        with ForkServers() as own:
            return train_prepared(prepared, callbacks, change, own)
    if config.run.serial_mode:
        servers.close()
    with (
        noted_signals(config.run.serial_mode, early, started_by, has_launcher=not rank.is_alone) as signals,
        own_directory(config, rank) as config,
    ):
        # torchrun begins again from what was saved
        behavior = "resume" if rank.goes_on else config.run.restart_behavior
        experiment = Experiment(config.run.train_dir, config.run.experiment, behavior)
        restarts, began_s, seconds_before = Restarts(config.faults.max_restarts), time.monotonic(), 0.0
        with contextlib.ExitStack() as beside:
            beside.callback(experiment.close)
            origin = origin_of()
            start = EarlierStart(given_at(config, given), without_effect(config.model, info))
            beside.enter_context(logged(experiment.path / CONSOLE_LOG, origin.command))
            if experiment.set_aside:
                Console().line(experiment.set_aside)
            if rank.is_first:
                beside.enter_context(trackers_beside(config.run, experiment.path, signals))
            while True:
                say_start(rank, given, config, experiment.num_earlier_starts, signals)
                shared, specs = wire(config, info, source, experiment, fields, rank, earlier_starts)
                if change is not None:
                    specs = change(shared, specs)
                try:
                    of_run = seconds_before, origin, start
                    return run(config, shared, specs, experiment, signals, servers, callbacks, *of_run)
                except LearnerLost as lost:
                    may_begin_again = config.faults.restart_learner and not signals.received
                    delay_s = restarts.delay_s(time.monotonic(), shared.has_trained) if may_begin_again else None
                    if delay_s is None:
                        raise
                    Console().line(f"{lost} The run begins again from its last checkpoint, or anew if there is none.")
                    connection.wait([signals.fileno()], delay_s)
                    seconds_before = time.monotonic() - began_s
                    experiment.begin()
                del shared, specs  # its memory is needed again
                gc.collect()


def _for_the_rest(config: Config, seconds: float) -> Config:
    """The configuration of a run that has lasted so long already."""
    if config.run.train_for_seconds is None:
        return config
    left_s = max(1, config.run.train_for_seconds - math.ceil(seconds))
    return replace(config, run=replace(config.run, train_for_seconds=left_s))


def run(
    config: Config,
    shared: Shared,
    specs: Sequence[RoleSpec],
    experiment: Experiment,
    signals: Signals,
    servers: ForkServers,
    callbacks: Callbacks | None = None,
    seconds_before: float = 0.0,
    origin: Origin | None = None,
    start: EarlierStart | None = None,
) -> Outcome:
    """Runs wired roles until there is a reason to stop; normal end, error and signal share this way out.

    The time that a lost learner has already taken counts as `seconds_before`; `origin` is that of the run, and `start`
    is noted in its directory when nothing refuses it any more.
    """
    roles = SerialRoles(shared) if config.run.serial_mode else Processes(shared, config.faults, servers)
    rest = _for_the_rest(config, seconds_before)
    monitor = _monitor(rest, shared, experiment, origin)
    session = Session(
        rest, shared, monitor, callbacks or Callbacks(), roles.take_messages, director_of(rest, shared, experiment.path)
    )
    reason: ExitReason | None = None
    error: BaseException | None = None
    try:
        roles.start(specs)
        if config.run.serial_mode:
            session.recall_episodes()
        monitor.watch(roles.pids, lambda: roles.faults() | session.faults(), session.records.seconds)

        def on_ready() -> None:
            shared.began_s[0] = time.monotonic() - seconds_before
            _note_start(experiment, config, start or EarlierStart())

        reason = _watch(roles, session, signals, experiment, on_ready)
        session.request_best()
    except BaseException as failure:  # a callback may raise anything, and no process may be left running
        error = failure
        session.callbacks = Callbacks()  # it would only be raised again
    session.say_why_it_ends(reason)
    problems = roles.stop(signals)
    session.stopped_s = time.monotonic()
    if shared.rank.is_first and not any(UNKILLABLE in problem for problem in problems):
        _collect_leftovers(experiment)
    if error is None and problems:
        if signals.is_urgent:
            # Also where the run had a reason of its own to end, because nothing of it was saved.
            reason = ExitReason.of(signals.first)
        else:
            error = InternalError("The run did not end in order: " + "; ".join(problems))
    try:
        if error is None and roles.ended_well("learner"):
            look_at_last_policy(specs, session, signals, experiment, servers)
        session.read_last()
        _delete_overwritten(experiment, session)
        if error is None:
            session.expect_peers()
    except Exception as failure:
        error = error or failure
    if imbalance := session.imbalance():  # beside any other error, this must not go unnoticed
        imbalance.__cause__, error = error, imbalance
    error = error and (as_refusal(error) or error)
    code = _exit_code(reason, error)
    why = session.told(reason) if reason and error is None else f"{type(error).__name__}: {error}"
    if isinstance(error, LostDirectory):
        session.leave()  # another run may have the directory
        raise error
    may_have_lost = (error is not None or signals.is_urgent) and shared.rank.is_first
    session.finish(why + (_lost(experiment, session) if may_have_lost else ""), code, is_in_order=error is None)
    if error is not None:
        raise error
    return Outcome(code, why)


def _monitor(config: Config, shared: Shared, experiment: Experiment, origin: Origin | None) -> Monitor:
    topology = shared.topology
    held = Fraction(topology.num_slots * topology.rows, trajectories_per_dataset(config))
    return Monitor(
        config,
        experiment.path,
        topology.agents_per_env,
        None if shared.rank.is_first else WarningsOnly(),
        expected_lag(config, topology.agents_per_env, held),
        origin,
    )


def _collect_leftovers(experiment: Experiment) -> None:
    """Removes checkpoints that were begun, unless another run has the directory by now."""
    with contextlib.suppress(OSError, CheckpointError):
        experiment.owner.expect_unchanged()
        collect_all_leftovers(experiment.path)


def _delete_overwritten(experiment: Experiment, session: Session) -> None:
    """Deletes an earlier run of the same directory as soon as this one has something in its place."""
    if session.has_saved and (told := experiment.delete_overwritten()):
        Console().line(told)


def _note_start(experiment: Experiment, config: Config, start: EarlierStart) -> None:
    """Writes the configuration, and says what a run that is continued does differently."""
    if changes := experiment.write_config(config.to_json(), start):
        Console().line(f"Settings that differ from those of the last start: {', '.join(changes)}")


def _lost(experiment: Experiment, session: Session) -> str:
    """A note for the user where a run has learned what no checkpoint has; "" where it has saved all."""
    policies = session.snapshot(session.stopped_s).policies
    try:
        lost = frames_not_saved(experiment.path, [policy.frames for policy in policies])
    except OSError:  # a file system that is away hides nothing of what has ended the run
        return ""
    return f" ({lost:,} frames that were learned from after the newest checkpoint are lost)" if lost else ""


def _expect_directory(experiment: Experiment, missed: int) -> int:
    """Ends a run that could save nothing any more; returns how many looks in a row have not found its directory.

    Raises:
        LostDirectory: two looks have found that the directory was removed, or is another run's now.
    """
    try:
        experiment.owner.expect_unchanged()
    except LostDirectory:
        if missed:
            raise
        return 1  # a file system that is mounted anew may bring it back
    except CheckpointError:
        return 0  # each save says that it failed
    return 0


def _watch(
    roles: SerialRoles | Processes,
    session: Session,
    signals: Signals,
    experiment: Experiment,
    on_ready: Callable[[], None],
) -> ExitReason:
    """The main loop; `on_ready` is called when every role is built, so that nothing has refused to continue."""
    next_poll = next_look = time.monotonic()
    missed = 0
    pace = Pace()
    has_begun = has_told_of_handlers = False
    while True:
        if signals.take_back() and not has_told_of_handlers:
            has_told_of_handlers = True
            Console().line("A package in this process has taken the signals that stop a run. They are taken back.")
        roles.advance(next_poll - time.monotonic() if roles.is_ready else POLL_S, signals)
        if signals.look_for_parent():
            Console().line(
                "The process that started this run is gone, so it stops. Start it with nohup or setsid to let it go on."
            )
        # First, because torchrun sends a signal to the ranks that are left as soon as one has ended. Another rank can
        # reach a limit before this one is ready, which begins all the same, so that its files tell of the run.
        others = session.reason_of_others()
        if others is not None and (has_begun or signals.is_urgent):
            return others
        if others is None and (stopped := ExitReason.of(signals.first)) is not None:
            return stopped
        if not roles.is_ready and pace.is_due(time.monotonic(), spoke_s()):
            Console().line(f"Training begins when these are ready: {roles.unready()}.")
        if roles.is_ready and not has_begun:
            has_begun = True
            on_ready()
        if roles.is_ready and (time.monotonic() >= next_poll or roles.has_news):
            if (reason := session.poll()) is not None:
                return reason
            _delete_overwritten(experiment, session)
            if time.monotonic() >= next_look:
                missed = _expect_directory(experiment, missed)
                next_look = time.monotonic() + LOOK_S
            next_poll = time.monotonic() + POLL_S  # however long the callbacks took: in serial mode the roles work now


def _exit_code(reason: ExitReason | None, error: BaseException | None) -> ExitCode:
    if isinstance(error, SfError):
        return error.exit_code
    if error is not None:
        return ExitCode.INTERNAL
    return reason.code if reason else ExitCode.FINISHED
