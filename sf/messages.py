"""What travels between processes as a message, grouped by receiver; indices and small numbers only, never arrays.

Trajectories, actions, weights and counters do not travel: they are in shared memory, see `slots.py`, `weights.py` and
`records.py`. `process.py` has the two messages about the life of a child, `Ready` and `Failure`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

SaveKind = Literal["periodic", "best", "milestone"]


@dataclass(frozen=True)
class SaveRequest:
    """To a learner: write a checkpoint before the next iteration."""

    kind: SaveKind
    reward: float | None
    """Mean return of the last 100 episodes at this moment, None before the first one."""


@dataclass(frozen=True)
class CheckpointSaved:
    """To the supervisor: a checkpoint is complete on disk, or why it is not."""

    policy_id: int
    kind: SaveKind
    path: str
    version: int
    error: str = ""


@dataclass(frozen=True)
class EvaluationDone:
    """To the supervisor: what one policy reached in an evaluation."""

    policy_id: int
    version: int
    """Of the weights that played all episodes."""
    frames: int
    """Trained on when the evaluation began."""
    episodes: int
    reward: float
    """Mean return of an episode; its deviation is that of all of them, not an estimate."""
    reward_std: float
    reward_min: float
    reward_max: float
    length: float
    """Mean, in steps."""
    num_cut: int = 0
    """Episodes that were too long and cut."""

    @classmethod
    def of(
        cls,
        policy_id: int,
        version: int,
        frames: int,
        rewards: Sequence[float],
        lengths: Sequence[int],
        num_cut: int = 0,
    ) -> EvaluationDone:
        """A message of one size: who is stopped in the middle of a longer one leaves its reader waiting."""
        scores = np.asarray(rewards, np.float64)
        with np.errstate(invalid="ignore"):  # an environment may return what is not finite
            mean, deviation, least, most = map(float, (scores.mean(), scores.std(), scores.min(), scores.max()))
        length = float(np.mean(lengths))
        return cls(policy_id, version, frames, len(scores), mean, deviation, least, most, length, num_cut)


@dataclass(frozen=True)
class TrainSummary:
    """To the supervisor: the numbers of one optimizer step, for TensorBoard."""

    policy_id: int
    version: int
    frames: int
    names: str
    """Joined by commas."""
    values: array[float]
    """float32, as the event files store them."""

    @classmethod
    def of(cls, policy_id: int, version: int, frames: int, scalars: Mapping[str, float]) -> TrainSummary:
        """A message of a few hundred bytes; as a dict it would take twice as many."""
        return cls(policy_id, version, frames, ",".join(scalars), array("f", scalars.values()))

    @property
    def scalars(self) -> dict[str, float]:
        return dict(zip(self.names.split(","), self.values, strict=True))
