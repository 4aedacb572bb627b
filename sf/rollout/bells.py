"""The doorbells of a rollout worker, apart from it: wiring them imports no role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sf.shared.doorbell import Doorbell


@dataclass(frozen=True)
class RolloutBells:
    """The doorbells that a rollout worker hears or rings."""

    own: Doorbell
    """Wakes this worker."""
    inference: Sequence[Doorbell]
    """Doorbells of the inference workers that serve it, one per policy; empty if it acts for itself."""
    learners: Sequence[Doorbell]
    """Doorbells of the learners that own its groups."""
