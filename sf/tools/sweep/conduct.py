"""Conducts a sweep: which run is next, what its end means, and the loop that keeps a backend busy."""

from __future__ import annotations

import select
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from sf.console import clock, rounded
from sf.errors import ExitCode
from sf.processes.signals import Signals
from sf.tools.sweep.description import Description
from sf.tools.sweep.execution import pruned
from sf.tools.sweep.forecast import Forecast
from sf.tools.sweep.pruning import KeepAll, Pruner
from sf.tools.sweep.record import SweepRecord
from sf.tools.sweep.search import Search
from sf.tools.sweep.trials import Trial, TrialOutcome, TrialRun, flags_of, run_of

POLL_S = 0.1
PRUNE_S = 5.0
"""How often the curves of the runs that go on are looked at."""


class Job(Protocol):
    """A run on a backend."""

    def done(self) -> bool:
        """Whether it has ended."""
        ...

    def result(self) -> TrialOutcome:
        """How it has ended."""
        ...

    def cancel(self) -> object:
        """Has it save and end."""
        ...


class Queue:
    """The runs of a sweep, in order; everything that ends is written down at once."""

    def __init__(
        self,
        description: Description,
        record: SweepRecord,
        search: Search,
        tell: Callable[[str], None] = print,
        pruner: Pruner | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins with the runs of trials that were begun before.

        Args:
            description: of the sweep.
            record: what earlier starts have left, and where ends are written down.
            search: proposes trials.
            tell: receives lines.
            pruner: finds hopeless runs; None for none.
            now: monotonic time.
        """
        self.pruner, self._now = pruner or KeepAll(), now
        took_s = [each.seconds for each in record.outcomes.values() if each.counts and each.seconds]
        self._forecast = Forecast(description.settings.jobs, took_s)
        self._hopeless: set[int] = set()
        """Numbers of trials of which a run was pruned in this start."""
        self._description = description
        self._record = record
        self._search = search
        self._tell = tell
        self._open: dict[int, int] = {}
        """Runs of a trial that have not ended."""
        self._waiting: deque[tuple[Trial, int]] = deque()
        self.ended: list[TrialOutcome] = []
        """Those of this start, without stopped ones."""
        for trial in record.trials:
            self._add(trial)

    def next_run(self) -> TrialRun | None:
        """The next run to start, those of trials that were begun first; None if there is no other."""
        if not self._waiting and (trial := self._search.ask()) is not None:
            self._add(trial)
            self._record.write()
        if not self._waiting:
            return None
        run = run_of(self._description, *self._waiting.popleft())
        self._forecast.began(run, self._now())
        flags = shlex.join(flags_of(self._record.trials[run.trial].flags.items()))
        begun = self.num_runs - self._num_left() + self._forecast.num_running
        which = f"Trial {run.trial + 1} of {self._search.num_trials}, run {begun} of {self.num_runs}"
        self._tell(f"{which}: {run.name}{f' with {flags}' if flags else ''}")
        return run

    @property
    def num_runs(self) -> int:
        """Runs of the whole sweep."""
        return self._search.num_trials * len(self._description.settings.seeds)

    def is_hopeless(self, trial: int) -> bool:
        """Whether a trial was given up in this start."""
        return trial in self._hopeless

    def prune(self, trial: int) -> None:
        """Gives a trial up: runs that wait are dropped, and those that are stopped count as pruned."""
        self._hopeless.add(trial)
        waiting = [each for each in self._waiting if each[0].number != trial]
        self._open[trial] -= len(self._waiting) - len(waiting)
        self._waiting = deque(waiting)

    def ended_run(self, run: TrialRun, outcome: TrialOutcome) -> None:
        """Notes an end. A run that was stopped stays open for the next start, unless its trial is hopeless."""
        if outcome.state == "stopped" and run.trial in self._hopeless:
            outcome = pruned(run, outcome)
        self._forecast.ended(run, self._now(), outcome.counts)
        if outcome.state == "stopped":
            return
        self.pruner.ended(run, outcome)
        trial = self._record.trials[run.trial]
        self.ended.append(outcome)
        self._record.outcomes[run.trial, run.seed] = outcome
        self._record.write()
        self._tell(f"{run.name}: {_in_words(run, outcome)}")
        self._open[run.trial] -= 1
        self._tell_what_is_left()
        if not self._open[run.trial]:
            self._search.tell(trial)

    def _num_left(self) -> int:
        """Runs that have not ended, of trials that were begun and of those that were not."""
        begun = len(self._record.trials)
        return sum(self._open.values()) + (self._search.num_trials - begun) * len(self._description.settings.seeds)

    def _tell_what_is_left(self) -> None:
        if not (left := self._num_left()):
            return
        left_s = self._forecast.left_s(left, self._now())
        about = "" if left_s is None else f", about {clock(left_s)} left"
        self._tell(f"{self.num_runs - left} of {self.num_runs} runs are over{about}.")

    @property
    def is_over(self) -> bool:
        """Whether every run that was begun has ended."""
        return not self._waiting and not any(self._open.values())

    def exit_code(self) -> int:
        """0 if a trial has a score; if all have failed, the code of the last one."""
        if self._record.ranked() or not self.ended:
            return ExitCode.FINISHED
        code = self.ended[-1].exit_code
        return code if code > 0 else ExitCode.INTERNAL

    def _add(self, trial: Trial) -> None:
        seeds = self._record.open_seeds(trial)
        self._open[trial.number] = len(seeds)
        self._waiting += [(trial, seed) for seed in seeds]


def drive(
    queue: Queue, submit: Callable[[TrialRun], Job], jobs: int, signals: Signals, tell: Callable[[str], None]
) -> None:
    """Keeps as many runs going as `jobs`, until all have ended or a signal has stopped them."""
    running: dict[TrialRun, Job] = {}
    is_stopping, next_look_s = False, time.monotonic() + PRUNE_S
    while True:
        while len(running) < jobs and not signals.received and (run := queue.next_run()) is not None:
            running[run] = submit(run)
        if not running:
            return
        if signals.received and not is_stopping:
            is_stopping = True
            tell(f"Stopping {', '.join(run.name for run in running)}. They save first.")
            for job in running.values():
                job.cancel()
        if not is_stopping and time.monotonic() >= next_look_s:
            next_look_s = time.monotonic() + PRUNE_S
            _prune(queue, running)
        for run in [run for run, job in running.items() if job.done()]:
            queue.ended_run(run, running.pop(run).result())
        if running:
            select.select([signals], [], [], POLL_S)
            signals.clear()


def _prune(queue: Queue, running: Mapping[TrialRun, Job]) -> None:
    """Ends the runs of hopeless trials."""
    open_runs = {run: job for run, job in running.items() if not (job.done() or queue.is_hopeless(run.trial))}
    for trial in {run.trial for run in queue.pruner.hopeless(open_runs)}:
        queue.prune(trial)
    for run, job in open_runs.items():
        if queue.is_hopeless(run.trial):
            job.cancel()


def _in_words(run: TrialRun, outcome: TrialOutcome) -> str:
    if outcome.state == "pruned":
        reached = "" if outcome.value is None else f" at {run.objective} {rounded(outcome.value)}"
        return f"pruned{reached} ({outcome.frames:,} frames, {outcome.seconds:.1f} s)"
    if outcome.value is None:
        code = f" with exit code {outcome.exit_code}" if outcome.exit_code else ""
        return f"failed{code}. {outcome.message} (Its output: {run.log})"
    at_limit = ", at the time limit" if outcome.state == "time_limit" else ""
    took = f"{outcome.frames:,} frames, {outcome.seconds:.1f} s{at_limit}"
    return f"{run.objective} {rounded(outcome.value)} ({took})"
