"""How long one environment takes for a step, and how much of that it computes: the sizes of a run follow from it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from statistics import fmean, median
from typing import NamedTuple

from sf.machine.cores import queued_s

WAITS = 1.5
"""With so much more wall time than CPU time an environment waits for something, and others can use the core."""


class StepTime(NamedTuple):
    """Time of one environment, on its own or among many that step as one.

    The first steps in a process may compile what the others use. So a step of a single environment counts as the median
    of some, with the mean of the resets. Steps of many that step as one hold their resets; their mean counts, without
    the first quarter and the longest one.
    """

    wall_s: float
    """Seconds of wall time per step, without those in which others had the core."""
    cpu_s: float
    """Seconds of CPU time per step, that of the processes which the environment has started included."""
    start_s: float = 0.0
    """Seconds of wall time in which it, or all that step as one, is made and reset, without what is imported once."""
    copies: int = 1
    """Environments that stepped as one."""

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

    def __init__(self, copies: int = 1) -> None:
        """Begins; `copies` step as one."""
        self.copies = copies
        self._steps: list[tuple[float, float]] = []
        self._resets: list[tuple[float, float]] = []
        """Wall and CPU seconds of each call."""
        self._simulators_s = _cpu_of_children_s()
        self._began = time.perf_counter(), time.process_time(), queued_s()

    @property
    def num_steps(self) -> int:
        """Calls of step that have ended."""
        return len(self._steps)

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Around one call of step."""
        return self._running(self._steps)

    def reset(self) -> contextlib.AbstractContextManager[None]:
        """Around one call of reset."""
        return self._running(self._resets)

    @contextlib.contextmanager
    def _running(self, calls: list[tuple[float, float]]) -> Iterator[None]:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        yield
        calls.append((time.perf_counter() - wall_s, time.process_time() - cpu_s))

    def result(self) -> StepTime:
        """The times so far.

        The time for which this thread was kept from its core is read at both ends only. A look at it around every call
        would take the caches from the environment. Time that passed between the calls without computation is no part of
        them.
        """
        wall_s, cpu_s, queued = time.perf_counter(), time.process_time(), queued_s()
        simulators_s = max(0.0, _cpu_of_children_s() - self._simulators_s)
        began_s, began_cpu_s, queued_before_s = self._began
        all_wall_s, all_cpu_s = (sum(call[column] for call in self._steps + self._resets) for column in range(2))
        between_s = wall_s - began_s - all_wall_s - (cpu_s - began_cpu_s - all_cpu_s)
        inside_s = max(0.0, queued - queued_before_s - max(0.0, between_s))
        own_wall_s = self._typical_s(0, max(0.0, 1 - inside_s / all_wall_s))
        own_cpu_s, copies = self._typical_s(1, 1.0), self.copies
        computing_s = own_cpu_s + simulators_s / len(self._steps)
        return StepTime(max(own_cpu_s, own_wall_s) / copies, computing_s / copies, copies=copies)

    def _typical_s(self, column: int, share: float) -> float:
        """Seconds of a step, with its part of the resets.

        Args:
            column: 0 for wall time, 1 for CPU time.
            share: of all that time in which this thread had its core. The median leaves out those steps already that
                were kept from it, unless most were.
        """
        steps, resets = ([call[column] for call in calls] for calls in (self._steps, self._resets))
        typical_s = median(steps) if self.copies == 1 else _without_compiling(steps)
        return min(typical_s, share * fmean(steps)) + share * sum(resets) / len(steps)


def _without_compiling(steps: list[float]) -> float:
    """The mean of steps that hold resets as well, without the first quarter and the longest one, which may compile."""
    later = sorted(steps[len(steps) // 4 :])
    return fmean(later[:-1] or later)


def _cpu_of_children_s() -> float:
    import psutil  # not in every process that knows environments

    total = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += sum(child.cpu_times()[:2])
    return total


def in_us(seconds: float) -> str:
    """A duration in microseconds with three digits, such as 64.5 and 5,060."""
    number = float(f"{1e6 * seconds:.3g}")
    return f"{number:,.0f}" if number >= 100 else f"{number:g}"
