"""One run of a sweep: ``sf-train`` as a process with a process group of its own, here or on another machine."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sf.errors import ExitCode, ExperimentError, SfError
from sf.storage.experiment import expect_free
from sf.tools.sweep.trials import TrialOutcome, TrialRun

POLL_S = 0.1
ORDERLY_S = 120.0
"""A run that was told to stop may save for so long; then it is killed."""
FREE_S = 60.0
"""A run whose sweep was killed notices that, saves, and frees its directory within this time."""
COSTS = "frames", "wall_time_s"
GOAL_REACHED = "stop_at_reward reached"
ERROR_LINE = re.compile(r"^\w*(?:Error|Crashed|Lost|Spent): .*", re.M)


def execute(run: TrialRun, stop: threading.Event | None = None) -> TrialOutcome:
    """Runs it to its end and says how that was; a run that has ended in order before is not started again.

    Args:
        run: what to do.
        stop: when it is set, the run saves and ends. KeyboardInterrupt does the same.
    """
    stop = stop or threading.Event()
    try:
        run.log.parent.mkdir(parents=True, exist_ok=True)
        _expect_same_flags(run)
        if (earlier := ended_before(run)) is not None:
            return earlier
        _wait_until_free(run, stop)
        with run.log.open("ab") as log:
            written = log.tell()
            process = _started(run, log)
            state, code = _watch(process, run, stop)
    except (OSError, SfError) as error:
        if stop.is_set():  # while it waited
            return TrialOutcome("stopped", ExitCode.SIGINT)
        return TrialOutcome("failed", getattr(error, "exit_code", ExitCode.RESOURCES), message=str(error))
    if state == "failed":
        return TrialOutcome("failed", code, message=_last_error(run.log, written))
    return _outcome(run, state, code)


def _expect_same_flags(run: TrialRun) -> None:
    """Keeps the flags beside the log, because numbers of trials begin anew where results.json is moved away.

    Raises:
        ExperimentError: the directory is of a run with other flags.
    """
    path, flags = run.log.with_suffix(".flags"), with_values(run.flags)
    text = path.read_text() if path.exists() else " ".join(flags)
    before = with_values(shlex.split(text))
    if before != flags and text != shlex.join(sorted(run.flags)):  # as earlier versions wrote them
        was, now = ([flag for flag in some if flag not in other] for some, other in ((before, flags), (flags, before)))
        raise ExperimentError(
            f"{run.directory} was trained with {' '.join(was)}, and this trial has {' '.join(now)}. Move it away, or "
            "give the sweep another name."
        )
    path.write_text(" ".join(flags))


def with_values(words: Iterable[str]) -> list[str]:
    """Each flag with all of its values, in the order of their names."""
    flags: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not flags:
            flags.append([])
        flags[-1].append(word)
    return sorted(map(shlex.join, flags))


def ended_before(run: TrialRun) -> TrialOutcome | None:
    """The outcome of a run that has reached its end, of which the sweep was not told."""
    summary = _summary(run.directory)
    if summary is None or summary.get("exit_code") != ExitCode.FINISHED:
        return None
    return _outcome(run, "finished", ExitCode.FINISHED)


def pruned(run: TrialRun, outcome: TrialOutcome) -> TrialOutcome:
    """The outcome of a run that was stopped because it was hopeless, with what it has reached."""
    return replace(outcome, state="pruned", value=objective_of(run.directory, run.objective))


def _started(run: TrialRun, log: Any) -> subprocess.Popen[bytes]:
    # A group and not a session: the supervisor of a run that leads a session does not follow what has started it.
    group: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
    return subprocess.Popen(
        run.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=run.working_directory, **group
    )


def _watch(process: subprocess.Popen[bytes], run: TrialRun, stop: threading.Event) -> tuple[Any, int]:
    """State and exit code of a process, which is told to end by a stop or at its limit."""
    deadline = time.monotonic() + (run.time_limit_s or math.inf)
    state = "finished"
    try:
        while process.poll() is None and state == "finished":
            is_stopped = stop.wait(POLL_S)
            state = "stopped" if is_stopped else "time_limit" if time.monotonic() > deadline else state
    except KeyboardInterrupt:  # in the process of a job
        state = "stopped"
    if process.poll() is None:
        _end(process)
    code = process.returncode
    if code in (-signal.SIGINT, -signal.SIGTERM):  # the signal came when the run had ended already
        code = (_summary(run.directory) or {}).get("exit_code", code)
    if code == ExitCode.FINISHED:
        return "finished", code
    is_orderly = code in (ExitCode.SIGINT, ExitCode.SIGTERM) and state != "finished"
    return (state if is_orderly or state == "stopped" else "failed"), code


def _end(process: subprocess.Popen[bytes]) -> None:
    """In order, as Ctrl-C does it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(ORDERLY_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_free(run: TrialRun, stop: threading.Event) -> None:
    """Waits for an earlier start that is still saving.

    Raises:
        ExperimentError: the directory cannot be had.
    """
    deadline = time.monotonic() + FREE_S
    while True:
        try:
            return expect_free(run.train_dir, run.name)
        except ExperimentError:
            if stop.wait(POLL_S) or time.monotonic() > deadline:
                raise


def _outcome(run: TrialRun, state: Any, code: int) -> TrialOutcome:
    """With the objective, from the files of the run."""
    summary = _summary(run.directory) or {}
    value = objective_of(run.directory, run.objective)
    to_goal = any(flag.startswith("--stop_at_reward=") for flag in run.flags)
    if run.objective in COSTS and (state == "time_limit" or (to_goal and summary.get("exit_reason") != GOAL_REACHED)):
        value = None  # less of it was needed only because the run was cut off
    found = {"frames": summary.get("frames", 0), "seconds": summary.get("wall_time_s", 0.0)}
    if value is None and state != "stopped":
        hint = "no episode has ended" if run.objective == "reward" else f"it has no {run.objective} to compare"
        family, is_curve, _ = run.objective.partition("/")
        there = _scalars(run.directory / "metrics.jsonl", f"{family}/") if is_curve else ()
        if there:
            hint += f", only {', '.join(there)}"
        hint += f" ({summary.get('exit_reason', 'no summary.json')})"
        remedy = "with longer runs"
        if is_curve and not there:
            remedy = f"with flags that make curves of {family}/, or another objective"
        elif is_curve:
            remedy = "with an objective that is there"
        message = f"The run ended in order, but {hint}. Use another name for the sweep, {remedy}."
        return TrialOutcome("failed", code, message=message, **found)
    return TrialOutcome(state, code, value if state != "stopped" else None, **found)


def objective_of(directory: Path, objective: str) -> float | None:
    """The number that a run is ranked by; None where it has none.

    ``reward`` is the mean return of the last episodes, averaged over policies; scalars are the last ones of policy 0.
    """
    summary = _summary(directory) or {}
    if "/" in objective:
        value = _last_scalar(directory / "metrics.jsonl", objective)
    elif objective == "reward":
        rewards = [policy["reward"] for policy in summary.get("policies", ()) if policy["reward"] is not None]
        value = statistics.fmean(rewards) if rewards else None
    else:
        value = summary.get(objective)
    return value if value is not None and math.isfinite(value) else None


def _last_scalar(path: Path, tag: str) -> float | None:
    value = None
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # a line that was not finished
                point = json.loads(line)
                if point.get(tag) is not None and point["policy_id"] == 0:
                    value = float(point[tag])
    return value


def _scalars(path: Path, beginning: str) -> list[str]:
    """Names of the curves that begin so."""
    names: set[str] = set()
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                names |= {name for name in json.loads(line) if name.startswith(beginning)}
    return sorted(names)


def _summary(directory: Path) -> dict[str, Any] | None:
    try:
        summary: dict[str, Any] = json.loads((directory / "summary.json").read_bytes())
    except (OSError, ValueError):
        return None
    return summary


def _last_error(log: Path, written: int) -> str:
    """The last line of this start that looks like the message of an error, or the last line at all."""
    text = log.read_bytes()[written:].decode(errors="replace")
    errors = ERROR_LINE.findall(text) or text.strip().splitlines()
    return errors[-1] if errors else "It has written nothing."
