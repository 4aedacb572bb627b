"""The state of a run at one moment, for what is drawn on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from sf.monitor.snapshot import Lag
from sf.monitor.time_shares import Seconds


class View(NamedTuple):
    """Taken once or twice a second."""

    elapsed_s: float
    """Since this start."""
    frames: int
    """Trained on so far, the history included."""
    fps: Sequence[float]
    """Frames per second over 10, 60 and 300 seconds; nan where that is not known yet."""
    throughput: Sequence[float]
    """Samples per second of each policy."""
    rewards: Mapping[int, float]
    """Policy id to mean return."""
    lag: Lag
    """Lag of policy 0; negative if there is none yet."""
    faults: Callable[[], Mapping[str, float]] = dict
    """Counters by the tags of their curves; a function, like the next ones, because it takes time to find out."""
    seconds: Callable[[], Seconds] = dict
    """Seconds of each process, since the start."""
    asked_s: Callable[[], float] = float
    """Seconds of cores that all processes have wanted, see `sf.machine.cores.asked_s`."""


class Screen(Protocol):
    """Something that is drawn below the lines of a run."""

    def update(self, view: View) -> None:
        """Draws again."""

    def print_above(self, text: str) -> None:
        """Prints lines above."""

    def close(self) -> None:
        """Leaves the terminal as it was."""
