"""How long one environment takes for a step, and how much of that it computes: the sizes of a run follow from it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

from sf.machine.cores import queued_s

WAITS = 1.5
"""With so much more wall time than CPU time an environment waits for something, and others can use the core."""


class StepTime(NamedTuple):
    """Means over some steps of one environment, on its own or of many that step as one; resets included."""

    wall_s: float
    """Seconds of wall time per step, without those in which others had the core."""
    cpu_s: float
    """Seconds of CPU time per step, that of the processes which the environment has started included."""
    start_s: float = 0.0
    """Seconds of wall time in which one environment is made and reset, without what is imported once."""

    @property
    def waiting(self) -> float:
        """How many copies of the environment one core can step at once, at least 1: more if it mostly waits."""
        return max(1.0, self.wall_s / max(self.cpu_s, 1e-9))

    @property
    def waits(self) -> bool:
        """Whether it hardly needs its core."""
        return self.waiting > WAITS


class Stopwatch:
    """Runs while the environment works."""

    def __init__(self) -> None:
        self.steps = 0
        self._wall_s = self._cpu_s = 0.0
        self._simulators_s = _cpu_of_children_s()
        self._began = time.perf_counter(), time.process_time(), queued_s()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Around one call of the environment."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        yield
        self._wall_s += time.perf_counter() - wall_s
        self._cpu_s += time.process_time() - cpu_s

    def result(self) -> StepTime:
        """The means so far.

        The time for which this thread was kept from its core is read at both ends only. A look at it around every call
        would take the caches from the environment. Time that passed between the calls without computation is no part of
        them.
        """
        wall_s, cpu_s, queued = time.perf_counter(), time.process_time(), queued_s()
        simulators_s = max(0.0, _cpu_of_children_s() - self._simulators_s)
        began_s, began_cpu_s, queued_before_s = self._began
        between_s = wall_s - began_s - self._wall_s - (cpu_s - began_cpu_s - self._cpu_s)
        inside_s = max(0.0, queued - queued_before_s - max(0.0, between_s))
        own_s = max(self._cpu_s, self._wall_s - inside_s)
        return StepTime(own_s / self.steps, (self._cpu_s + simulators_s) / self.steps)


def _cpu_of_children_s() -> float:
    import psutil  # not in every process that knows environments

    total = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += sum(child.cpu_times()[:2])
    return total
