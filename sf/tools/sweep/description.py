"""A sweep as its file describes it; `sf.tools.sweep.reading` reads and checks the file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from sf.config.ranges import ABOVE_0, AT_LEAST_1, SEED

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """The keys at the top of the file."""

    sweep: str
    """Name of the sweep and of its directory below train_dir."""
    train_dir: str = "train_dir"
    """Directory that holds the sweep."""
    seeds: tuple[Annotated[int, SEED], ...] = (1,)
    """Every trial is run with each of them."""
    trials: Annotated[int, AT_LEAST_1] = 20
    """Combinations that random and tpe try; a grid tries all."""
    jobs: Annotated[int, AT_LEAST_1] = 1
    """Runs at once."""
    time_limit_s: Annotated[float, ABOVE_0] | None = None
    """Longest time of one run; then it saves and ends, and counts with what it has reached."""
    objective: str = "reward"
    """Number that ranks trials: reward, frames, wall_time_s, or a scalar of metrics.jsonl such as eval/reward."""
    minimise: bool = False
    """Whether smaller is better."""
    search_seed: Annotated[int, SEED] = 0
    """Seed of random and tpe."""


@dataclass(frozen=True)
class Span:
    """The range of a flag, both ends included."""

    low: float
    high: float
    log: bool = False
    """Draw uniformly in the logarithm."""
    integer: bool = False
    """Draw whole numbers."""

    def rounded(self, value: float) -> float | int:
        """With four digits, so that a command line stays readable, and inside the range."""
        if self.integer:
            return round(value)
        return min(max(float(f"{value:.4g}"), self.low), self.high)

    def problem(self) -> str:
        """Why nothing can be drawn from it; "" if it can."""
        if not self.low < self.high:
            return f"low={self.low:g} must be below high={self.high:g}."
        if self.log and self.low <= 0:
            return f"low={self.low:g} must be above 0 with log = true."
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            return "low and high must be whole numbers with integer = true."
        return ""


@dataclass(frozen=True)
class Description:
    """A sweep."""

    settings: Settings
    flags: Mapping[str, Any]
    """The same in all runs."""
    values: Mapping[str, Sequence[Any]]
    ranges: Mapping[str, Span]
    slurm: Mapping[str, Any]
    """Parameters of submitit."""
    ray: Mapping[str, Any]
    """Resources of one run."""

    @property
    def varied(self) -> list[str]:
        """The flags that differ between trials, in the order of the file."""
        return [*self.values, *self.ranges]

    @property
    def first(self) -> dict[str, Any]:
        """A combination: the first values, and the lower ends of the ranges."""
        ends = {key: span.rounded(span.low) for key, span in self.ranges.items()}
        return {key: values[0] for key, values in self.values.items()} | ends

    def without(self, keys: Collection[str]) -> Description:
        """The same without some of its flags."""

        def left(flags: Mapping[str, T]) -> dict[str, T]:
            return {key: value for key, value in flags.items() if key not in keys}

        return replace(self, flags=left(self.flags), values=left(self.values), ranges=left(self.ranges))

    @property
    def directory(self) -> Path:
        """Where the sweep lies."""
        return Path(self.settings.train_dir).absolute() / self.settings.sweep

    def better(self, value: float) -> float:
        """A number that is larger for the better objective."""
        return -value if self.settings.minimise else value
