"""Which combination is tried next: all of a grid, random ones, or those that Optuna's TPE expects to be good."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from sf.errors import UsageError
from sf.tools.sweep.description import Description, Span
from sf.tools.sweep.record import SweepRecord
from sf.tools.sweep.trials import Interval, Trial

MOST_REDRAWN = 100
"""Draws of a combination that has been tried; after that random search takes all for tried."""


class Search(Protocol):
    """Proposes trials and hears of their scores."""

    @property
    def num_trials(self) -> int:
        """Trials of the whole sweep, those that were begun included."""
        ...

    def ask(self) -> Trial | None:
        """The next trial; None if there is no other."""
        ...

    def tell(self, trial: Trial) -> None:
        """All runs of the trial have ended; its score, if it has one, is in the record."""
        ...


def make_search(name: str | None, description: Description, record: SweepRecord) -> Search:
    """The search of this name; None takes a grid where no flag has a range, else random.

    Raises:
        UsageError: a grid of ranges, or Optuna is not installed.
    """
    name = name or ("random" if description.ranges else "grid")
    if name == "tpe":
        return TpeSearch(description, record)
    if name == "random":
        return RandomSearch(description, record)
    if description.ranges:
        raise UsageError(
            f"A grid cannot try every value of the range of {next(iter(description.ranges))}. List values in [values], "
            "or use --search=random."
        )
    return GridSearch(description, record)


class GridSearch:
    """Every combination once, the last flag changing fastest."""

    def __init__(self, description: Description, record: SweepRecord) -> None:
        combinations = itertools.product(*description.values.values())
        trials = (record.trial(dict(zip(description.values, each, strict=True))) for each in combinations)
        begun = len(record.trials)  # those are resumed without being asked for
        known = [trial.flags for trial in record.trials]
        self.num_trials = begun + sum(
            dict(zip(description.values, each, strict=True)) not in known
            for each in itertools.product(*description.values.values())
        )
        self._new: Iterator[Trial] = (trial for trial in trials if trial.number >= begun)

    def ask(self) -> Trial | None:
        return next(self._new, None)

    def tell(self, trial: Trial) -> None:
        """A grid learns nothing."""


class RandomSearch:
    """Independent draws; the one of a number is the same in every start."""

    def __init__(self, description: Description, record: SweepRecord) -> None:
        self._description = description
        self._record = record

    @property
    def num_trials(self) -> int:
        return _num_drawn(self._description, self._record)

    def ask(self) -> Trial | None:
        number = len(self._record.trials)
        if number >= self._description.settings.trials:
            return None
        random = np.random.default_rng([self._description.settings.search_seed, number])
        for _ in range(MOST_REDRAWN):
            drawn = _drawn(self._description, random)
            if (trial := self._record.trial(drawn)).number == number:
                return trial
        return None

    def tell(self, trial: Trial) -> None:
        """Draws are independent."""


def _num_drawn(description: Description, record: SweepRecord) -> int:
    """Trials of a search that draws; where nothing has a range, no more than there are combinations."""
    most = math.inf if description.ranges else math.prod(len(values) for values in description.values.values())
    return max(len(record.trials), int(min(description.settings.trials, most)))


def _drawn(description: Description, random: np.random.Generator) -> dict[str, Any]:
    chosen = {key: values[int(random.integers(len(values)))] for key, values in description.values.items()}
    return chosen | {key: _uniform(span, random) for key, span in description.ranges.items()}


def _uniform(span: Span, random: np.random.Generator) -> float | int:
    low, high = (span.low - 0.5, span.high + 0.5) if span.integer else (span.low, span.high)
    value = math.exp(random.uniform(math.log(low), math.log(high))) if span.log else random.uniform(low, high)
    return int(min(max(round(value), span.low), span.high)) if span.integer else span.rounded(value)


class TpeSearch:
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011).

    Its study is built from the record, which is the only memory: so it goes on after random search, and after a crash.
    """

    def __init__(self, description: Description, record: SweepRecord) -> None:
        """Tells Optuna what is known.

        Raises:
            UsageError: it is not installed.
        """
        try:
            import optuna
        except ImportError:
            raise UsageError('--search=tpe needs Optuna: pip install "sf-rl[sweep]"') from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        settings = description.settings
        self._optuna = optuna
        self._description = description
        self._record = record
        self._distributions = distributions(description)
        sampler = optuna.samplers.TPESampler(
            seed=settings.search_seed + len(record.trials),  # a start does not repeat the draws of the one before
            constant_liar=settings.jobs > 1,
        )
        direction = "minimize" if settings.minimise else "maximize"
        self._study = optuna.create_study(sampler=sampler, direction=direction)
        self._asked: dict[int, Any] = {}
        for trial in record.trials:
            if not record.open_seeds(trial):
                self.tell(trial)

    @property
    def num_trials(self) -> int:
        return _num_drawn(self._description, self._record)

    def ask(self) -> Trial | None:
        if len(self._record.trials) >= self._description.settings.trials:
            return None
        for _ in range(MOST_REDRAWN):
            asked = self._study.ask(self._distributions)
            flags = {key: self._value(key, asked.params[key]) for key in self._description.varied}
            number = len(self._record.trials)
            if (trial := self._record.trial(flags)).number == number:
                self._asked[number] = asked
                return trial
            self._study.tell(asked, state=self._optuna.trial.TrialState.PRUNED)
        return None

    def tell(self, trial: Trial) -> None:
        score = self._record.score(trial)
        if self._record.is_pruned(trial):
            self._tell_of_pruned(trial, score)
        elif (asked := self._asked.pop(trial.number, None)) is not None:
            failed = self._optuna.trial.TrialState.FAIL
            self._study.tell(asked, score and score.mean, state=None if score else failed)
        elif score is not None:
            known = self._distributions
            with contextlib.suppress(ValueError):  # it has a value that the file does not list any more
                create = self._optuna.trial.create_trial
                added = create(params=params(self._description, trial.flags), distributions=known, value=score.mean)
                self._study.add_trial(added)

    def _tell_of_pruned(self, trial: Trial, score: Interval | None) -> None:
        """With what it had reached after how many frames, which TPE takes for less than a whole trial."""
        state, known = self._optuna.trial.TrialState.PRUNED, self._distributions
        frames = max(each.frames for (number, _), each in self._record.outcomes.items() if number == trial.number)
        reached = {frames: score.mean} if score else {}
        if (asked := self._asked.pop(trial.number, None)) is not None:
            for step, value in reached.items():
                asked.report(value, step)
            self._study.tell(asked, state=state)
            return
        with contextlib.suppress(ValueError):  # it has a value that the file does not list any more
            own = params(self._description, trial.flags)
            create = self._optuna.trial.create_trial
            self._study.add_trial(create(state=state, params=own, distributions=known, intermediate_values=reached))

    def _value(self, key: str, param: Any) -> Any:
        span = self._description.ranges.get(key)
        return json.loads(param) if span is None else span.rounded(param)


def distributions(description: Description) -> dict[str, Any]:
    """The flags as Optuna has them."""
    return {key: _choice(values) for key, values in description.values.items()} | {
        key: _range(span) for key, span in description.ranges.items()
    }


def params(description: Description, flags: Mapping[str, Any]) -> dict[str, Any]:
    """A combination as Optuna has it."""
    return {key: json.dumps(value) if key in description.values else value for key, value in flags.items()}


def _choice(values: Any) -> Any:
    """Values as texts, because a list is no choice to Optuna."""
    from optuna.distributions import CategoricalDistribution

    return CategoricalDistribution([json.dumps(value) for value in values])


def _range(span: Span) -> Any:
    from optuna.distributions import FloatDistribution, IntDistribution

    if span.integer:
        return IntDistribution(int(span.low), int(span.high), log=span.log)
    return FloatDistribution(span.low, span.high, log=span.log)
