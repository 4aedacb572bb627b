"""What a sweep consists of: a trial is one combination of values, and has a run for each seed."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sf.config.as_flags import as_flags
from sf.tools.sweep.description import Description

State = Literal["finished", "time_limit", "stopped", "pruned", "failed"]
T_QUANTILES = 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228
"""Quantiles of Student's distribution at 97.5 %, for 1 to 10 degrees of freedom."""


@dataclass(frozen=True)
class Trial:
    """One combination of values."""

    number: int
    flags: Mapping[str, Any]
    """The flags that vary."""


@dataclass(frozen=True)
class TrialRun:
    """One training of a sweep, with everything that another machine needs to start it."""

    trial: int
    seed: int
    flags: tuple[str, ...]
    train_dir: str
    working_directory: str
    """Flags may name modules and files in it."""
    objective: str
    time_limit_s: float | None

    @property
    def name(self) -> str:
        """That of its experiment."""
        return run_name(self.trial, self.seed)

    @property
    def directory(self) -> Path:
        """That of its experiment."""
        return Path(self.train_dir) / self.name

    @property
    def log(self) -> Path:
        """Its output; a directory that has another file in it would be no experiment."""
        return Path(self.train_dir) / "logs" / f"{self.name}.txt"

    @property
    def command(self) -> list[str]:
        """The process that runs it."""
        own = f"--experiment={self.name}", f"--train_dir={self.train_dir}", f"--seed={self.seed}"
        return [sys.executable, "-m", "sf.cli.train", *self.flags, *own]


@dataclass(frozen=True)
class TrialOutcome:
    """How a run has ended."""

    state: State
    exit_code: int
    value: float | None = None
    """The objective."""
    frames: int = 0
    seconds: float = 0.0
    """Time of training, since the last start."""
    message: str = ""
    """Why it failed."""

    @property
    def counts(self) -> bool:
        """Whether it need not run again: it has an objective, or was found to be hopeless."""
        return self.value is not None or self.state == "pruned"


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, with its interval at a confidence of 95 %."""

    mean: float
    low: float
    high: float
    count: int


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of the mean; without width for a single value, which says nothing of others."""
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Interval(mean, mean, mean, 1)
    quantile = T_QUANTILES[count - 2] if count - 2 < len(T_QUANTILES) else 1.96
    half = quantile * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def run_name(trial: int, seed: int) -> str:
    """The experiment of a run."""
    return f"trial{trial:03d}-seed{seed}"


def run_of(description: Description, trial: Trial, seed: int) -> TrialRun:
    """The run of a trial with one seed."""
    settings = description.settings
    flags = flags_of({**description.flags, **trial.flags}.items())
    where = str(description.directory), str(Path.cwd())
    return TrialRun(trial.number, seed, flags, *where, settings.objective, settings.time_limit_s)


def flags_of(flags: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """As the command line has them."""
    return tuple(argument for name, value in flags for argument in as_flags(name, value))
