"""One place in a run and the process that fills it: what it has told, whether it gets on, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Literal

from sf.errors import DeviceLost, EnvCrashed, ResourceError, SfError, WorkerCrashed
from sf.processes.fork_server import ForkedProcess
from sf.processes.hangs import Hang, HangWatch
from sf.processes.process import Failure, Ready, as_exception, how_it_ended
from sf.processes.restarts import Restarts
from sf.shared.progress import Phase
from sf.shared.role import RoleSpec

End = Literal["signal", "exception", "hang", "memory", "exit"]
"""How a child ends that nobody has told to: killed, failed, stuck, killed for its memory, or by its own exit."""

MAY_PASS = EnvCrashed.__name__, DeviceLost.__name__
"""Failures that the user is told of, and that a successor may be spared."""


@dataclass
class Child:
    """One process, what it has told so far, and whether it gets on."""

    spec: RoleSpec
    incarnation: int
    process: SpawnProcess | ForkedProcess
    pidfd: int
    """Readable when it has ended; the sentinel of multiprocessing waits for whatever was forked from it as well."""
    reports: Connection
    watch: HangWatch
    mark: str
    """What the programs that it starts have among their environment variables."""
    work_before: int
    """How much its place had delivered when it came."""
    is_ready: bool = False
    failure: Failure | None = None
    hang: Hang | None = None
    kill_s: float = math.inf
    """When to kill it, because it hangs."""
    killed_s: float = math.inf
    """When that was done first."""
    exit_code: int | None = None
    """Once it was reaped; negative if a signal ended it."""
    lacked_memory: bool = False
    """The kernel killed a process for its memory when this one was killed."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def hear(self) -> list[Any]:
        """Reads what the child has reported; returns what is for the session."""
        messages = []
        try:
            while self.reports.poll():
                message = self.reports.recv()
                if isinstance(message, Failure):
                    self.failure = message
                elif isinstance(message, Ready):
                    self.is_ready = True
                else:
                    messages.append(message)
        except (EOFError, OSError):
            pass  # its end tells the rest
        return messages

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether the process is no more, or not within so many seconds; it need not have been reaped."""
        return bool(connection.wait([self.pidfd], timeout=timeout_s))

    def ending(self) -> SfError:
        """The error that says how this child ended, although nobody had told it to."""
        who = f"{self.name} (pid {self.pid})"
        if self.hang is not None:
            return WorkerCrashed(f"{who} {what_hangs(self.hang, self.spec)}, and was killed.")
        if self.failure is not None:
            return as_exception(self.failure, who)
        if self.lacked_memory:
            return ResourceError(
                f"{who} was killed by SIGKILL, as the kernel does when memory runs out. Use fewer environments "
                "(--num_workers, --num_envs_per_worker), or give the machine or container more memory."
            )
        return WorkerCrashed(f"{who} {how_it_ended(self.exit_code)} without being told to, and left no traceback.")

    @property
    def end(self) -> End:
        """What `ending` says, in a word."""
        if self.hang is not None:
            return "hang"
        if self.failure is not None:
            return "exception"
        if self.lacked_memory:
            return "memory"
        return "signal" if (self.exit_code or 0) < 0 else "exit"

    @property
    def may_be_luck(self) -> bool:
        """Whether a successor can do better: not where the user was told what is wrong with the environment."""
        return self.failure is None or not self.failure.is_expected or self.failure.kind in MAY_PASS


def what_hangs(hang: Hang, spec: RoleSpec) -> str:
    """What a process has been doing for too long, as a part of a sentence, with the flag that allows it more time."""
    limit = f"longer than {hang.deadline_s:g} s"
    if hang.phase is Phase.WAIT:
        return f"did nothing at all for {limit}"
    if hang.phase is Phase.START:
        return f"took {limit} to start"
    if not spec.has_environments or (hang.phase is Phase.STEP and spec.kind != "rollout"):
        return f"was busy for {limit} without getting on"
    call = {Phase.INIT: "make", Phase.RESET: "reset", Phase.STEP: "step"}[hang.phase]
    return f"took {limit} to {call} environment {hang.environment} (--env_{'init' if call == 'make' else call}_timeout)"


@dataclass
class Place:
    """Where one role belongs, whoever fills it."""

    spec: RoleSpec
    restarts: Restarts
    child: Child | None = None
    start_s: float = math.inf
    """When the successor is to be started."""
    waits_for_fork_server: bool = False
    is_given_up: bool = False
    last_failure: str = ""
    """Shown in full already."""
