"""The process that sends the curves of a run while it goes on. It may hang or fail without any effect on the run."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from sf.config import RunConfig
from sf.console import Console
from sf.errors import UsageError
from sf.processes.signals import Signals

Tracker = Literal["wandb", "trackio"]
END_S = 60.0
"""To send what is left, after the end of the run."""
TOLD_AFTER_S, LOOK_S = 2.0, 0.05


def wanted_trackers(run: RunConfig) -> list[Tracker]:
    """Those that the flags name.

    Raises:
        UsageError: the package of one is missing.
    """
    wanted: list[Tracker] = []
    if run.with_wandb:
        wanted.append("wandb")
    if run.with_trackio:
        wanted.append("trackio")
    for tracker in wanted:
        expect_installed(tracker)
    return wanted


def expect_installed(tracker: Tracker) -> None:
    """Refuses a tracker whose package is missing.

    Raises:
        UsageError: with the command that installs it.
    """
    if importlib.util.find_spec(tracker) is None:
        raise UsageError(f'The package {tracker} is missing: pip install "sf-rl[{tracker}]"')


@contextlib.contextmanager
def trackers_beside(run: RunConfig, directory: Path, signals: Signals) -> Iterator[None]:
    """Sends curves inside the block, and what is left of them after it, until a signal arrives."""
    with contextlib.ExitStack() as stack:
        for tracker in wanted_trackers(run):
            stack.callback(_end, tracker, _started(tracker, run, directory), directory, signals)
        yield


def _started(tracker: Tracker, run: RunConfig, directory: Path) -> subprocess.Popen[bytes]:
    flags = [f"--train_dir={directory.parent}", f"--experiment={directory.name}", f"--to={tracker}", "--follow=True"]
    named = {"project": run.wandb_project, "entity": run.wandb_user, "group": run.wandb_group, "tags": run.wandb_tags}
    flags += [f"--{name}={value}" for name, value in named.items() if value]
    # A session of its own, so that Ctrl-C is for the run, whose end it waits for.
    command = [sys.executable, "-m", "sf.cli.track", *flags]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _end(tracker: Tracker, process: subprocess.Popen[bytes], directory: Path, signals: Signals) -> None:
    assert process.stdin is not None
    process.stdin.close()
    place = shlex.join([f"--experiment={directory.name}", f"--train_dir={directory.parent}"])
    again = f"sf-track {place} --to={tracker} sends the rest."
    known = len(signals.received)
    _wait(process, TOLD_AFTER_S, signals, known)
    if process.poll() is None:
        Console().line(f"The last curves are sent to {tracker}, at most {END_S:.0f} s. Ctrl-C leaves them out.")
        _wait(process, END_S, signals, known)
    if (code := process.poll()) is None:
        Console().line(f"Warning: {tracker} does not have all curves. {again}")
    elif code:
        Console().line(f"Warning: the process that sends curves to {tracker} ended with code {code}. {again}")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with all that the package has started
    process.wait()


def _wait(process: subprocess.Popen[bytes], seconds: float, signals: Signals, known: int) -> None:
    """Until it has ended, the time is over, or a signal has arrived beside those that were known."""
    deadline_s = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline_s and len(signals.received) == known:
        time.sleep(LOOK_S)
