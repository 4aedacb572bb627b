"""The inside of a child: its ties to its parent, one main function, and the reports of that function.

A child does one function, for most of them the loop of a role, see `sf.shared.role`. Reports travel over a pipe:
messages of the function, `Ready` before a loop, and a `Failure` at an end in disorder.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from sf.console import log_to, logged_to, share_what_is_told, speak_for, spoken_for
from sf.errors import ExitCode
from sf.machine.cores import queued_s
from sf.output import BoundedStream, bound_output
from sf.processes.failures import failure_of
from sf.processes.signals import STOP_SIGNALS
from sf.processes.ties import STACKS_SIGNAL, end_with_parent, take_mark
from sf.shared.arena import Arena
from sf.shared.progress import Phase, Progress
from sf.shared.records import ASKED, BEGAN_S
from sf.shared.role import RoleSpec
from sf.shared.told import TOLD, Told

RUNNING, STOPPING = 0, 1
"""Values of the run-state word that every loop looks at."""


class Stopped(BaseException):
    """A role has seen STOPPING within long work and leaves it; no exception that others handle."""


NEVER_STOPPED = memoryview(bytes(8)).cast("q")
"""A run-state word for work that no supervisor stops."""

LOOK_AGAIN_S = 1.0
"""No wait is longer, so that a lost doorbell costs time and never a run."""

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.05
"""Between two looks of a role that is ready at whether all others are."""

PREFIX = "sf-"
"""How the names of our processes begin in the process list."""

OOM_SCORE = 500
"""As if it used half of the memory of the machine in addition, where the kernel chooses a process to kill."""


@dataclass(frozen=True)
class Ready:
    """The role is built and enters its loop."""


class ChildJob(SpawnProcess):
    """The order to a child. The standard library unpickles it in the new process and calls `_bootstrap`."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        reports: Connection,
        mark: str,
        leads_group: bool,
    ) -> None:
        super().__init__(name=name)
        self.function, self.arguments, self.reports = function, arguments, reports
        self.mark, self.leads_group = mark, leads_group
        self.parent_pid = os.getpid()
        self.rank, self.console_log = spoken_for(), logged_to()

    def _bootstrap(self, parent_sentinel: int) -> NoReturn:
        os.close(parent_sentinel)  # the file of this job, which says nothing of the parent
        super()._bootstrap(os.pidfd_open(os.getppid()))  # type: ignore[misc]
        os._exit(ExitCode.INTERNAL)

    def run(self) -> NoReturn:
        child_main(self)


def child_main(job: ChildJob) -> NoReturn:
    """The main function of every child."""
    end_with_parent(job.parent_pid)
    if job.leads_group:
        lead_group()
        bound_output()
    set_title(job.name)
    speak_for(job.rank)
    log_to(job.console_log)
    leave_signals_to_parent()
    take_mark(job.mark)  # a fork has that of the fork server
    np.random.seed()  # else all forks draw the same numbers
    try:
        job.function(job.reports.send, *job.arguments)
    except BaseException as error:
        failure = failure_of(error)
        job.reports.send(failure)
        leave(failure.exit_code)
    leave(ExitCode.FINISHED)


def run_role(tell: Callable[[Any], None], spec: RoleSpec, arena: Arena) -> None:
    """Builds a role and steps it until the run stops."""
    share_what_is_told(Told(arena[TOLD]).is_first)
    with contextlib.suppress(Stopped):  # before it was built
        role = spec.build()
        role.tell = tell
        gc.collect()
        gc.freeze()  # what was built stays, so that later collections need not look at it
        tell(Ready())
        wait_for_begin(arena, role.record.progress)
        began_s = time.process_time() + queued_s()  # what it took to begin is no training
        role.record.begin()
        run_state, progress = arena["run_state"], role.record.progress
        with contextlib.suppress(Stopped):
            while run_state[0] == RUNNING:
                progress.enter(Phase.STEP)
                if not role.step():
                    progress.enter(Phase.WAIT)
                    role.wait(LOOK_AGAIN_S)
        role.close()
        role.record[ASKED] += time.process_time() + queued_s() - began_s
        role.record.publish()


def wait_for_begin(arena: Arena, progress: Progress) -> None:
    """Waits until every role of the run has been found ready, or the run stops.

    So its clock, limits and curves begin with the first frame. A successor does not wait.

    Args:
        arena: has the time of the beginning.
        progress: shows at each look that this role is alive, however long the others take.
    """
    came_s, run_state, has_begun_s = time.monotonic(), arena["run_state"], arena[BEGAN_S]
    while math.isnan(has_begun_s[0]) and run_state[0] == RUNNING:
        progress.enter(Phase.WAIT)
        time.sleep(min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, (time.monotonic() - came_s) / 50)))


def leave(code: int) -> NoReturn:
    """Ends this process now; threads that environments have left behind would hold it up."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            if isinstance(stream, BoundedStream):
                stream.tell_what_is_left_out()
            stream.flush()
    os._exit(code)


def leave_signals_to_parent() -> None:
    """The supervisor decides, asks for stacks, and kills what does not follow.

    The handler of stop signals does nothing, unlike SIG_IGN, which simulators started by an environment would inherit.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    faulthandler.register(STACKS_SIGNAL, file=sys.__stderr__ or sys.stderr, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*STOP_SIGNALS, STACKS_SIGNAL})


def lead_group() -> None:
    """Puts this process and those that it will start into a process group of its own.

    When memory runs out, the kernel takes that of environments first: they can be replaced, and are what leaks.
    """
    os.setpgid(0, 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))


def set_title(name: str) -> None:
    """Shows `sf-<name>` in the process list."""
    os.environ["SPT_NOENV"] = "1"  # else the title is written over the mark that forks of this process inherit
    import setproctitle

    setproctitle.setproctitle(f"{PREFIX}{name}")
