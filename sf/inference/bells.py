"""The doorbells of an inference worker, apart from it: wiring them imports no role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sf.shared.doorbell import Doorbell


@dataclass(frozen=True)
class InferenceBells:
    """The doorbells that an inference worker hears or rings."""

    own: Doorbell
    """Wakes this worker."""
    workers: Sequence[Doorbell]
    """Doorbells of all rollout workers."""
