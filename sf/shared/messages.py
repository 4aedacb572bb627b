"""All messages between processes, grouped by receiver; indices and small numbers only, never arrays.

Trajectories, actions, weights and counters do not travel: they are in shared memory, see `slots.py`, `weights.py` and
`records.py`. `sf/processes/process.py` has the two messages about the life of a child, `Ready` and `Failure`.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

SaveKind = Literal["periodic", "best", "milestone", "pool"]

MOST_BYTES_OF_SCALARS = 800
"""Room for scalars in a message below 1 KB; the rest of the message takes 150 bytes."""
BYTES_PER_SCALAR = 9
"""Size of a pickled value and of the frame around its name."""
MOST_CHARACTERS = 160
"""Longest name of a curve; each character takes up to four bytes."""


@dataclass(frozen=True)
class SaveRequest:
    """To a learner: write a checkpoint before the next iteration."""

    kind: SaveKind
    reward: float | None
    """Mean return of the last 100 episodes at this moment, None before the first one."""


@dataclass(frozen=True)
class PlayAs:
    """To a learner that trains nothing: publish the policy of a checkpoint before the next iteration."""

    snapshot: int
    """Number of the snapshot in the pool of self-play."""
    path: str
    """Path of its checkpoint."""


@dataclass(frozen=True)
class Evolve:
    """To a learner of a population: go on with these flags, and from the weights of another policy if one is named."""

    values: tuple[tuple[str, float], ...]
    """Name and value of each flag."""
    source: int | None = None
    """The policy whose weights it takes over."""


Order = SaveRequest | PlayAs | Evolve
"""Everything that a learner can be told to do before its next iteration."""


@dataclass(frozen=True)
class CheckpointSaved:
    """To the supervisor: a checkpoint is complete on disk, or why it is not."""

    policy_id: int
    kind: SaveKind
    path: str
    version: int
    error: str = ""


@dataclass(frozen=True)
class Seated:
    """To the supervisor: a policy plays as a snapshot from a version on, or why it does not."""

    policy_id: int
    snapshot: int
    version: int
    error: str = ""


@dataclass(frozen=True)
class PeersLost:
    """To the supervisor: the learners of another rank cannot be reached any more, so the run must end."""

    sentence: str


@dataclass(frozen=True)
class EvaluationDone:
    """To the supervisor: the result of one policy in an evaluation."""

    policy_id: int
    version: int
    """Version of the weights that played all episodes."""
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
        """A message of one size: a process stopped in the middle of a longer one leaves its reader waiting.

        Without episodes, where no agent of the policy has come, its numbers are nan.
        """
        if not rewards:
            nan = math.nan
            return cls(policy_id, version, frames, 0, nan, nan, nan, nan, nan)
        scores = np.asarray(rewards, np.float64)
        with np.errstate(invalid="ignore"):  # an environment may return what is not finite
            mean, deviation, least, most = map(float, (scores.mean(), scores.std(), scores.min(), scores.max()))
        length = float(np.mean(lengths))
        return cls(policy_id, version, frames, len(scores), mean, deviation, least, most, length, num_cut)


@dataclass(frozen=True)
class TrainSummary:
    """To the supervisor: numbers of one optimizer step, for TensorBoard; as many messages as their names take."""

    policy_id: int
    version: int
    frames: int
    is_last: bool
    """No other message about this step follows."""
    names: tuple[str, ...]
    values: array[float]
    """float32, as the event files store them."""

    @classmethod
    def of(cls, policy_id: int, version: int, frames: int, scalars: Mapping[str, float]) -> list[TrainSummary]:
        """Messages below 1 KB. Keys of observations are part of the names, so these can hold any character."""
        parts: list[dict[str, float]] = [{}]
        num_bytes = 0
        for long_name, value in scalars.items():
            name = _shortened(long_name)
            size = len(name.encode(errors="surrogatepass")) + BYTES_PER_SCALAR
            if parts[-1] and num_bytes + size > MOST_BYTES_OF_SCALARS:
                parts.append({})
                num_bytes = 0
            parts[-1][name] = value
            num_bytes += size
        return [
            cls(policy_id, version, frames, part is parts[-1], tuple(part), array("f", part.values())) for part in parts
        ]

    @property
    def scalars(self) -> dict[str, float]:
        return dict(zip(self.names, self.values, strict=True))


def _shortened(name: str) -> str:
    """With a checksum in place of its middle where it is too long, so that no two names become one."""
    half = MOST_CHARACTERS // 2
    if len(name) <= MOST_CHARACTERS:
        return name
    return f"{name[:half]}.{zlib.crc32(name.encode(errors='surrogatepass')):08x}.{name[-half:]}"
