"""Which runs are hopeless: Optuna's median pruner looks at each of them while it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from sf.errors import UsageError
from sf.tools.sweep.curves import NUM_STEPS, Axis, values_at_steps
from sf.tools.sweep.description import Description
from sf.tools.sweep.execution import COSTS
from sf.tools.sweep.record import SweepRecord
from sf.tools.sweep.trials import TrialOutcome, TrialRun, run_of

FEWEST_ENDED = 5
"""Runs that must have ended in order before any is pruned."""
FIRST_STEP = NUM_STEPS // 4
"""Before it no run is pruned, because early returns say little."""


class Pruner(Protocol):
    """Looks at runs while they go on, and hears of their ends."""

    def hopeless(self, runs: Iterable[TrialRun]) -> list[TrialRun]:
        """Those of these runs that are not worth their time."""
        ...

    def ended(self, run: TrialRun, outcome: TrialOutcome) -> None:
        """A run has ended."""
        ...


class KeepAll:
    """Prunes nothing."""

    def hopeless(self, runs: Iterable[TrialRun]) -> list[TrialRun]:
        return []

    def ended(self, run: TrialRun, outcome: TrialOutcome) -> None:
        """Every end is as good."""


def make_pruner(name: str, description: Description, record: SweepRecord) -> Pruner:
    """The pruner of this name.

    Raises:
        UsageError: runs of this sweep cannot be compared on their way, or Optuna is not installed.
    """
    return KeepAll() if name == "none" else MedianPruner(description, record)


class MedianPruner:
    """Prunes a run whose best value so far is below the median of the runs that have ended, at the same step.

    Each run is a trial of a study of Optuna, which is built from the record and the curves of the runs.
    """

    def __init__(self, description: Description, record: SweepRecord) -> None:
        """Tells Optuna of the runs that have ended before.

        Raises:
            UsageError: see `make_pruner`.
        """
        self.axis, self._objective = axis_of(description), description.settings.objective
        try:
            import optuna
        except ImportError:
            raise UsageError('--prune=median needs Optuna: pip install "sf-rl[sweep]"') from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._study = optuna.create_study(
            direction="minimize" if description.settings.minimise else "maximize",
            sampler=optuna.samplers.RandomSampler(seed=0),  # draws nothing, because these trials have no parameters
            pruner=optuna.pruners.MedianPruner(n_startup_trials=FEWEST_ENDED, n_warmup_steps=FIRST_STEP),
        )
        self._trials: dict[TrialRun, Any] = {}
        """Optuna's trials of the runs that go on."""
        self._reported: dict[TrialRun, int] = {}
        """Steps of them that Optuna knows."""
        for (number, seed), outcome in record.outcomes.items():
            if outcome.counts:
                self.ended(run_of(description, record.trials[number], seed), outcome)

    def hopeless(self, runs: Iterable[TrialRun]) -> list[TrialRun]:
        return [run for run in runs if self._is_hopeless(run)]

    def ended(self, run: TrialRun, outcome: TrialOutcome) -> None:
        states = self._optuna.trial.TrialState
        if outcome.state == "stopped":
            return
        self._report(run)
        trial = self._trials.pop(run)
        if outcome.state == "pruned":
            self._study.tell(trial, state=states.PRUNED)
        elif outcome.value is None:
            self._study.tell(trial, state=states.FAIL)
        else:
            self._study.tell(trial, outcome.value)

    def _is_hopeless(self, run: TrialRun) -> bool:
        """Asked at each new step, since the answer is about the newest one."""
        return self._report(run) and bool(self._trials[run].should_prune())

    def _report(self, run: TrialRun) -> bool:
        """Tells Optuna of the steps that the run has passed meanwhile; returns whether there are any."""
        if run not in self._trials:
            self._trials[run], self._reported[run] = self._study.ask(), 0
        new = [pair for pair in self._values(run) if pair[0] > self._reported[run]]
        for step, value in new:
            self._trials[run].report(value, step)
            self._reported[run] = step
        return bool(new)

    def _values(self, run: TrialRun) -> Iterator[tuple[int, float]]:
        return iter(sorted(values_at_steps(run.directory, self._objective, self.axis).items()))


def axis_of(description: Description) -> Axis:
    """By which runs are compared: their frames, or their seconds where no flag limits the frames.

    Raises:
        UsageError: neither has an end, or the objective is known at the end only.
    """
    if description.settings.objective in COSTS:
        raise UsageError(
            f"--prune=median compares runs on their way, and {description.settings.objective} is known at their end "
            "only. Use another objective, or --prune=none."
        )
    if frames := _largest(description, "train_for_env_steps"):
        return Axis("frames", frames)
    seconds = _largest(description, "train_for_seconds") or description.settings.time_limit_s
    if not seconds:
        raise UsageError(
            "--prune=median compares runs at shares of their length, which this file does not say. Give "
            "train_for_env_steps or train_for_seconds in [flags], or time_limit_s at the top."
        )
    return Axis("seconds", seconds)


def _largest(description: Description, name: str) -> float | None:
    """The largest value of a flag over all trials; None if it is not given."""
    given = [description.flags.get(name), *description.values.get(name, ())]
    if (span := description.ranges.get(name)) is not None:
        given.append(span.high)
    numbers = [float(value) for value in given if value not in (None, "None")]
    return max(numbers, default=None)
