"""Conducts a sweep: which run is next, what its end means, and the loop that keeps a backend busy."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sf.console import rounded
from sf.errors import ExitCode
from sf.processes.signals import Signals
from sf.sweep.description import Description
from sf.sweep.record import Record
from sf.sweep.search import Search
from sf.sweep.trials import Outcome, Run, Trial, run_of

POLL_S = 0.1


class Job(Protocol):
    """A run on a backend."""

    def done(self) -> bool:
        """Whether it has ended."""
        ...

    def result(self) -> Outcome:
        """How it has ended."""
        ...

    def cancel(self) -> object:
        """Has it save and end."""
        ...


class Queue:
    """The runs of a sweep, in order; everything that ends is written down at once."""

    def __init__(
        self, description: Description, record: Record, search: Search, tell: Callable[[str], None] = print
    ) -> None:
        self._description = description
        self._record = record
        self._search = search
        self._tell = tell
        self._open: dict[int, int] = {}
        """Runs of a trial that have not ended."""
        self._waiting: deque[tuple[Trial, int]] = deque()
        self.ended: list[Outcome] = []
        """Those of this start, without stopped ones."""
        for trial in record.trials:
            self._add(trial)

    def next_run(self) -> Run | None:
        """The next run to start, those of trials that were begun first; None if there is no other."""
        if not self._waiting and (trial := self._search.ask()) is not None:
            self._add(trial)
            self._record.write()
        if not self._waiting:
            return None
        return run_of(self._description, *self._waiting.popleft())

    def ended_run(self, run: Run, outcome: Outcome) -> None:
        """Notes an end. A run that was stopped stays open for the next start."""
        if outcome.state == "stopped":
            return
        trial = self._record.trials[run.trial]
        self.ended.append(outcome)
        self._record.outcomes[run.trial, run.seed] = outcome
        self._record.write()
        self._tell(f"{run.name}: {_in_words(run, outcome)}")
        self._open[run.trial] -= 1
        if not self._open[run.trial]:
            self._search.tell(trial)

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


def drive(queue: Queue, submit: Callable[[Run], Job], jobs: int, signals: Signals, tell: Callable[[str], None]) -> None:
    """Keeps as many runs going as `jobs`, until all have ended or a signal has stopped them."""
    running: dict[Run, Job] = {}
    is_stopping = False
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
        for run in [run for run, job in running.items() if job.done()]:
            queue.ended_run(run, running.pop(run).result())
        if running:
            select.select([signals], [], [], POLL_S)
            signals.clear()


def _in_words(run: Run, outcome: Outcome) -> str:
    if outcome.value is None:
        return f"failed with exit code {outcome.exit_code}. {outcome.message} (Its output: {run.log})"
    at_limit = ", at the time limit" if outcome.state == "time_limit" else ""
    took = f"{outcome.frames:,} frames, {outcome.seconds:.1f} s{at_limit}"
    return f"{run.objective} {rounded(outcome.value)} ({took})"
