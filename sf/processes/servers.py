"""The fork servers of a run: one for networks, one for environments. The run can go on without the second."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from sf.console import Console
from sf.errors import SfError
from sf.processes.child import Begun, spawned
from sf.processes.fork_server import ForkServer
from sf.processes.process import ChildJob
from sf.processes.simulators import Simulators
from sf.processes.spare import ENVIRONMENTS, NETWORKS, Spares
from sf.processes.ties import stop_signals_blocked

Used = TypeVar("Used")


class ForkServers:
    """They serve one run, restarts of its learner included; a context."""

    def __init__(self, spares: Spares | None = None, for_environments: str = ENVIRONMENTS) -> None:
        """Starts nothing yet.

        Args:
            spares: those that load already, closed by the caller; None for none.
            for_environments: what the server of processes with environments loads.
        """
        self._spares = spares or Spares()
        self.simulators: Simulators | None = None
        """The orphan reaper of the run, once it has processes."""
        self.networks = ForkServer(NETWORKS, self._spares)
        """Forks learners, inference workers and evaluators. Its end is the end of the run."""
        self._environments: ForkServer | None = ForkServer(for_environments, self._spares)

    def __enter__(self) -> ForkServers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends them and what they have forked; a run in one process needs none."""
        with stop_signals_blocked():
            self.networks.end()
            if self._environments is not None:
                self._environments.end()
            self._spares.close()
            if self.simulators is not None:
                self.simulators.close()
                self.simulators = None

    def start(self) -> None:
        """Has both begin to load, unless that has begun."""
        self.start_environments()
        assert self.simulators is not None
        self.networks.start(self.simulators)

    def start_environments(self) -> None:
        """The same of the one for environments."""
        self.simulators = self.simulators or Simulators()
        if self._environments is not None:
            self._environments.start(self.simulators)

    def waitables(self) -> list[Any]:
        """Readable when one is ready or has ended."""
        others = [] if self._environments is None else self._environments.waitables()
        return [*self.networks.waitables(), *others]

    def look(self) -> None:
        """Takes note, without waiting, of servers that are ready or have ended.

        Raises:
            SfError: that of networks has ended, or cannot load torch.
        """
        self.networks.look()
        if self._environments is not None:
            self._or_without(self._environments.look)

    @property
    def may_begin_environments(self) -> bool:
        """Whether a process with environments can be started without a wait."""
        server = self._environments
        return server is None or server.child is None or server.is_ready

    def begin_networks(self, job: ChildJob) -> Begun:
        """Starts a process that needs torch: a fork, or a program of its own where its server is not ready."""
        return self.networks.begin(job) if self.networks.is_ready else spawned(job)

    def begin_environments(self, job: ChildJob, imports_script: bool = True) -> Begun:
        """Starts a process with environments: a fork, or a program of its own where no server is there for them."""
        server = self._environments
        if server is not None and server.child is not None:
            begun = self._or_without(lambda: server.begin(job, imports_script))
            if begun is not None:
                return begun
            job.parent_pid = os.getpid()
        return spawned(job, imports_script)

    def _or_without(self, use: Callable[[], Used]) -> Used | None:
        """What a use of the server of environments returns; None if it fails, and with it the server is given up."""
        try:
            return use()
        except SfError as error:
            self._environments = None
            Console().line(f"{error} From now on processes with environments are started without it.")
            return None


class WorkerServer(ForkServers):
    """For processes that have networks and environments both, where there are no others: one server forks them all."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        super().__init__(for_environments=NETWORKS)

    def start(self) -> None:
        """Has it begin to load, unless that has begun."""
        self.start_environments()
