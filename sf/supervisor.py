"""The main process: checks, prepares, starts the roles, watches them, and ends the run in one way whatever happened.

The order is the one that wastes nothing: what can be refused is refused before a directory is made, and a directory is
taken before a process is started. Signals only leave a note; the loop acts on it. The first SIGINT or SIGTERM stops in
order and saves, the second one kills.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from sf.children import Processes, in_disposable_child
from sf.config import Config, check, resolve
from sf.envs import find_env, probe
from sf.errors import ExitCode, InternalError, SfError
from sf.experiment import Experiment
from sf.monitor import Monitor
from sf.process import RoleSpec, set_title
from sf.serial import SerialRoles
from sf.session import POLL_S, ExitReason, Session
from sf.signals import Signals, noted_signals
from sf.wiring import Shared, wire

PROBE_TIMEOUT_S = 60.0


def train(config: Config) -> ExitCode:
    """Runs a training from its configuration to its end.

    Raises:
        SfError: the run was refused, or ended because something broke; its `exit_code` says what kind.
    """
    check(config)
    source = find_env(config.run.env, config.run.env_arguments)
    info = in_disposable_child(probe, source, timeout_s=PROBE_TIMEOUT_S, what=f"A first look at {source.env_id}")
    config = resolve(config, info, cores=len(os.sched_getaffinity(0)))
    check(config, info)
    set_title("train")
    experiment = Experiment(config.run.train_dir, config.run.experiment, config.run.restart_behavior)
    try:
        experiment.write_config(config.to_json())
        shared, specs = wire(config, info, source, experiment)
        return run(config, shared, specs, experiment)
    finally:
        experiment.close()


def run(config: Config, shared: Shared, specs: Sequence[RoleSpec], experiment: Experiment) -> ExitCode:
    """Runs wired roles until there is a reason to stop; normal end, error and signal share this way out."""
    roles = SerialRoles() if config.run.serial_mode else Processes(shared)
    monitor = Monitor(config, experiment.path, shared.topology.agents_per_env)
    session = Session(config, shared, monitor)
    reason: ExitReason | None = None
    error: Exception | None = None
    with noted_signals() as signals:
        try:
            roles.start(specs)
            monitor.watch_processes(roles.pids())
            reason = _watch(roles, session, signals)
        except Exception as failure:
            error = failure
        problems = roles.stop(signals)
        if error is None and problems and not signals.is_urgent:
            error = InternalError("The run did not end in order: " + "; ".join(problems))
        code = _exit_code(reason, error)
        try:
            session.finish(reason.value if reason else f"{type(error).__name__}: {error}", code)
        except SfError as failure:
            error = error or failure
    if error is not None:
        raise error
    return code


def _watch(roles: SerialRoles | Processes, session: Session, signals: Signals) -> ExitReason:
    """The main loop."""
    next_poll = time.monotonic()
    while True:
        roles.advance(next_poll - time.monotonic() if roles.is_ready else POLL_S, signals)
        if signals.reason is not None:
            return signals.reason
        if roles.is_ready and (time.monotonic() >= next_poll or roles.has_news):
            next_poll = time.monotonic() + POLL_S
            if (reason := session.poll()) is not None:
                return reason


def _exit_code(reason: ExitReason | None, error: Exception | None) -> ExitCode:
    if isinstance(error, SfError):
        return error.exit_code
    if error is not None:
        return ExitCode.INTERNAL
    if reason is ExitReason.SIGINT:
        return ExitCode.SIGINT
    return ExitCode.SIGTERM if reason is ExitReason.SIGTERM else ExitCode.FINISHED
