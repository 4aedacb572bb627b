"""The seam between a run and what it decides about its policies while it lasts.

The session pushes facts in, ten times a second, and sends the orders that come out to the learners. A director owns no
process and no clock. It keeps its own file below the directory of the experiment, so that a resumed run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sf.config import Config
from sf.shared.messages import CheckpointSaved, Order


@dataclass(frozen=True)
class PolicyFacts:
    """One policy at this moment."""

    frames: int
    """Trained on so far, those before a resume included."""
    version: int
    """Optimizer steps so far."""
    score: Callable[[], float | None]
    """Mean score of its last 100 episodes (`--score`), None with fewer; it is worked out when it is asked for."""


@dataclass(frozen=True)
class RunFacts:
    """The run at this moment."""

    time_s: float
    """By the monotonic clock."""
    policies: Sequence[PolicyFacts]
    """Facts of each policy."""


class Director(Protocol):
    """Decides about the policies of a run."""

    def poll(self, facts: RunFacts) -> Iterable[tuple[int, Order]]:
        """What the learners of policies have to do: number of the policy and order."""

    def checkpoint_saved(self, saved: CheckpointSaved) -> None:
        """Takes note of a checkpoint that is complete on disk, or could not be written."""

    def scalars(self, policy_id: int) -> Mapping[str, float]:
        """Curves of a policy at this moment, tag to value."""

    def close(self) -> None:
        """The run is over."""


class NoDirector:
    """Leaves the policies to themselves."""

    def poll(self, facts: RunFacts) -> Iterable[tuple[int, Order]]:
        """Nothing."""
        return ()

    def checkpoint_saved(self, saved: CheckpointSaved) -> None:
        """Takes no note."""

    def scalars(self, policy_id: int) -> Mapping[str, float]:
        """No curves."""
        return {}

    def close(self) -> None:
        """Has nothing to close."""


def director_of(config: Config, directory: Path) -> Director:
    """The director that the flags ask for.

    Args:
        config: of the run, resolved.
        directory: of the experiment.

    Raises:
        ExperimentError: the director cannot write its file.
    """
    if config.population.with_pbt:
        from sf.population.pbt_director import PbtDirector

        return PbtDirector(config, directory)
    return NoDirector()
