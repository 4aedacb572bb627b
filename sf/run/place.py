"""One place in a run: the role that belongs there, the child that runs it now, and how that gets on and ends."""

from __future__ import annotations

import math
from typing import Literal

from sf.errors import DeviceLost, EnvCrashed, ResourceError, SfError, WorkerCrashed
from sf.processes.child import Child
from sf.processes.failures import as_exception
from sf.processes.hangs import Hang, HangWatch
from sf.processes.restarts import Restarts
from sf.shared.progress import Phase, phase_of
from sf.shared.role import RoleSpec

End = Literal["signal", "exception", "hang", "memory", "exit"]
"""How a child ends that was not told to: killed, failed, stuck, killed for its memory, or by its own exit."""

MAY_PASS = EnvCrashed.__name__, DeviceLost.__name__
"""Failures that the user is told of, and that a successor may be spared."""


class Place:
    """Where one role belongs, whichever child runs it."""

    def __init__(self, spec: RoleSpec, max_restarts: int) -> None:
        self.spec, self.restarts = spec, Restarts(max_restarts)
        self.child: Child | None = None
        self.start_s = math.inf
        """When the successor is to be started."""
        self.waits_for_fork_server = self.is_given_up = False
        self.last_failure = ""
        """Shown in full already."""

    def fill(self, child: Child, watch: HangWatch, work_before: int) -> None:
        """Takes in a child that has just been started.

        Args:
            child: runs the role.
            watch: looks at its progress.
            work_before: work that the place had delivered when it came.
        """
        self.child, self.watch, self.work_before = child, watch, work_before
        self.hang: Hang | None = None
        self.kill_s = math.inf
        """When to kill it, because it hangs."""
        self.killed_s = math.inf
        """When that was done first."""
        self.lacked_memory = False
        """The kernel killed a process for its memory when this one was killed."""
        self.start_s, self.waits_for_fork_server = math.inf, False

    @property
    def is_ready(self) -> bool:
        """Whether its role is built, or never will be."""
        return self.is_given_up or (self.child is not None and self.child.is_ready)

    def what_it_makes(self) -> str:
        """Its name, and the environment that it makes or resets."""
        phase, environment = phase_of(self.watch.word[0]) if self.child else (Phase.START, 0)
        doing = {Phase.INIT: "makes", Phase.RESET: "resets"}.get(phase)
        return f"{self.spec.name} {doing} environment {environment}" if doing else self.spec.name

    def ending(self, child: Child) -> SfError:
        """The error that says how the child ended, although it was not told to."""
        if self.hang is not None:
            return WorkerCrashed(f"{child} {how_it_hangs(self.hang, self.spec)}, and was killed.")
        if child.failure is not None:
            return as_exception(child.failure, str(child))
        if self.lacked_memory:
            return ResourceError(
                f"{child} was killed by SIGKILL, as the kernel does when memory runs out. Use fewer environments "
                "(--num_workers, --num_envs_per_worker), or give the machine or container more memory."
            )
        return WorkerCrashed(f"{child.how_it_ended()} without being told to, and left no traceback.")

    def end_of(self, child: Child) -> End:
        """The same in a word."""
        if self.hang is not None:
            return "hang"
        if child.failure is not None:
            return "exception"
        if self.lacked_memory:
            return "memory"
        return "signal" if was_killed(child) else "exit"


def was_killed(child: Child, number: int | None = None) -> bool:
    """Whether a signal has ended it, or this one."""
    code = child.exit_code or 0
    return code < 0 if number is None else code == -number


def may_be_luck(child: Child) -> bool:
    """Whether a successor can do better: not where the user was told what is wrong with the environment."""
    return child.failure is None or not child.failure.is_expected or child.failure.kind in MAY_PASS


def how_it_hangs(hang: Hang, spec: RoleSpec) -> str:
    """The activity that took a process too long, as a part of a sentence, with the flag that allows it more time."""
    limit = f"longer than {hang.deadline_s:g} s"
    if hang.phase is Phase.WAIT:
        return f"did nothing at all for {limit}"
    if hang.phase is Phase.START:
        return f"took {limit} to start"
    if not spec.has_environments or (hang.phase is Phase.STEP and spec.kind != "rollout"):
        return f"was busy for {limit} without getting on"
    call = {Phase.INIT: "make", Phase.RESET: "reset", Phase.STEP: "step"}[hang.phase]
    return f"took {limit} to {call} environment {hang.environment} (--env_{'init' if call == 'make' else call}_timeout)"
