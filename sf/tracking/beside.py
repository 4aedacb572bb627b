"""The process that sends the curves of a run while it goes on. It may hang or fail without any effect on the run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sf.config import RunConfig
from sf.console import Console
from sf.tracking.clients import Tracker, expect_installed

END_S = 60.0
"""To send what is left, after the end of the run."""
TOLD_AFTER_S = 2.0


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


@contextlib.contextmanager
def trackers_beside(run: RunConfig, directory: Path) -> Iterator[None]:
    """Sends curves inside the block, and what is left of them after it."""
    began = [(tracker, _started(tracker, run, directory)) for tracker in wanted_trackers(run)]
    try:
        yield
    finally:
        for tracker, process in began:
            _end(tracker, process, directory)


def _started(tracker: Tracker, run: RunConfig, directory: Path) -> subprocess.Popen[bytes]:
    flags = [f"--train_dir={directory.parent}", f"--experiment={directory.name}", f"--to={tracker}", "--follow=True"]
    named = {"project": run.wandb_project, "entity": run.wandb_user, "group": run.wandb_group, "tags": run.wandb_tags}
    flags += [f"--{name}={value}" for name, value in named.items() if value]
    # A session of its own, so that Ctrl-C is for the run, whose end it waits for.
    command = [sys.executable, "-m", "sf.cli.track", *flags]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _end(tracker: Tracker, process: subprocess.Popen[bytes], directory: Path) -> None:
    assert process.stdin is not None
    process.stdin.close()
    again = f"sf-track --experiment={directory.name} --train_dir={directory.parent} --to={tracker} sends the rest."
    try:
        try:
            code = process.wait(TOLD_AFTER_S)
        except subprocess.TimeoutExpired:
            Console().line(f"The last curves are sent to {tracker}, at most {END_S:.0f} s. Ctrl-C leaves them out.")
            code = process.wait(END_S)
        if code:
            Console().line(f"Warning: the process that sends curves to {tracker} ended with code {code}. {again}")
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        Console().line(f"Warning: {tracker} does not have all curves. {again}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with all that the package has started
        process.wait()
