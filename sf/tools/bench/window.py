"""The steady part of a run: from its first readings after the start-up to its last ones."""

from __future__ import annotations

import time
from typing import Generic, Protocol, TypeVar

from sf.config import RunConfig
from sf.errors import UsageError
from sf.processes.process import RUNNING
from sf.run.callbacks import Iteration
from sf.run.wiring import Shared
from sf.shared.role import RoleSpec

LONGEST_WARM_UP_S = 5.0
READ_EVERY_S = 0.5

Reading = TypeVar("Reading", covariant=True)


class Instrument(Protocol[Reading]):
    """Something that looks into a run."""

    def attach(self, shared: Shared, specs: list[RoleSpec]) -> list[RoleSpec]:
        """Other specifications for the roles of the run, which let it look into them."""

    def read(self) -> Reading:
        """The reading so far."""


class Window(Generic[Reading]):
    """Reads an instrument when an iteration has ended, so that every reading has seen whole iterations."""

    def __init__(self, instrument: Instrument[Reading], run: RunConfig):
        self._instrument, self._run = instrument, run
        self.warm_up_s = min(LONGEST_WARM_UP_S, run.time_limit_s / 4)
        self._due_s: float | None = None
        self._readings: list[Reading] = []

    def attach(self, shared: Shared, specs: list[RoleSpec]) -> list[RoleSpec]:
        """Passed to `train_prepared`."""
        self._run_state = shared.run_state
        return self._instrument.attach(shared, specs)

    def on_iteration(self, _: Iteration) -> None:
        """Called while the run goes on, and once more when its processes have ended, which comes too late."""
        now = time.monotonic()
        if self._due_s is None:
            self._due_s = now + self.warm_up_s
        if now >= self._due_s and self._run_state[0] == RUNNING:
            self._due_s = now + READ_EVERY_S
            self._readings = [*self._readings[:1], self._instrument.read()]

    def ends(self) -> tuple[Reading, Reading]:
        """The first and the last reading.

        Raises:
            UsageError: the run was too short to have two.
        """
        if len(self._readings) < 2:
            raise UsageError(
                f"Two training iterations must end after the first {self.warm_up_s:g} s, and {len(self._readings)} did "
                f"with --train_for_seconds={self._run.train_for_seconds}. Give it more, or take a smaller --batch_size."
            )
        first, last = self._readings
        return first, last
