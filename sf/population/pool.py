"""The pool of past selves: which snapshots are kept, who plays next, and how strong they are.

A pure state machine: games and frames are pushed in, snapshots and opponents come out. It knows no file and no clock.
Opponents by score are prioritised fictitious self-play (Vinyals et al., 2019, "Grandmaster level in StarCraft II",
supplement). Ratings are Elo's (1978): the learner's moves after each game, that of a snapshot is the one which the
learner had when the snapshot was made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sf.config.self_play import SelfPlayConfig

REMEMBERED_GAMES = 100.0
"""Games that the score against a snapshot covers, with falling weights: older ones were played by a weaker learner."""
STEP = 8.0
"""Most that one game moves the rating; with 16 a rating swings by 50 points without a reason."""
SCALE = 400.0
"""Difference of ratings at which the stronger side is expected to win ten times as often."""


@dataclass
class OpponentRecord:
    """Games of policy 0 against one opponent."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    recent_games: float = 0.0
    """Games with falling weights."""
    recent_points: float = 0.0
    """Points of policy 0 in them."""

    def add(self, score: float) -> None:
        """Takes in a game."""
        self.wins += score == 1.0
        self.draws += score == 0.5
        self.losses += score == 0.0
        kept = 1 - 1 / REMEMBERED_GAMES
        self.recent_games = kept * self.recent_games + 1
        self.recent_points = kept * self.recent_points + score

    @property
    def score(self) -> float:
        """Mean of recent games, drawn towards 0.5 by two draws, so that a few games do not look like many."""
        return (self.recent_points + 1) / (self.recent_games + 2)


@dataclass
class PastSelf:
    """A past self in the pool."""

    number: int
    """Counted from 0 over the whole run."""
    path: str
    """Directory of the checkpoint, below that of the experiment."""
    frames: int
    """Frames that it was trained on."""
    rating: float
    results: OpponentRecord = field(default_factory=OpponentRecord)


class Pool:
    """Keeps snapshots, draws opponents and rates them."""

    def __init__(self, config: SelfPlayConfig, seed: int) -> None:
        """Begins empty."""
        self._config, self._random = config, np.random.default_rng(seed)
        self.snapshots: list[PastSelf] = []
        """Oldest first."""
        self.rating = 0.0
        """Rating of policy 0."""
        self.num_made, self._next_frames = 0, 0

    @property
    def score(self) -> float:
        """Mean of the scores of policy 0 against each snapshot in the pool; 0.5 without one."""
        return float(np.mean([one.results.score for one in self.snapshots])) if self.snapshots else 0.5

    def is_snapshot_due(self, frames: int) -> bool:
        """Whether policy 0, which has learned from so many frames, should enter the pool."""
        is_good = not self.snapshots or self.score >= self._config.self_play_gate
        return frames >= self._next_frames and is_good

    def add(self, path: str, frames: int) -> None:
        """Takes in a snapshot of policy 0; one that is there already is not new."""
        self._next_frames = frames + self._config.self_play_snapshot_every
        if all(one.path != path for one in self.snapshots):
            self.snapshots.append(PastSelf(self.num_made, path, frames, self.rating))
            self.num_made += 1

    def surplus(self, seated: Collection[int]) -> list[PastSelf]:
        """Takes the snapshots out that are too many, unless they are playing, and returns them.

        The newer half stays; of the older half the one that policy 0 beats most goes first, of equals the oldest.
        """
        removed = []
        while len(self.snapshots) > self._config.self_play_pool_size:
            older = self.snapshots[: len(self.snapshots) - self._config.self_play_pool_size // 2]
            free = [one for one in older if one.number not in seated]
            if not free:
                break
            beaten = max(free, key=lambda one: one.results.score)
            self.snapshots.remove(beaten)
            removed.append(beaten)
        return removed

    def go_back(self, frames: int) -> list[PastSelf]:
        """Takes out the snapshots of a future that is lost, because policy 0 goes on from these frames; returns them.

        The rating is again the one which policy 0 had when the first of them was made.
        """
        forgotten = [one for one in self.snapshots if one.frames > frames]
        if forgotten:
            self.snapshots = [one for one in self.snapshots if one.frames <= frames]
            self.rating, self.num_made = forgotten[0].rating, forgotten[0].number
        self._next_frames = min(self._next_frames, frames + self._config.self_play_snapshot_every)
        return forgotten

    def remove(self, number: int) -> None:
        """Takes out a snapshot that cannot be read."""
        self.snapshots = [one for one in self.snapshots if one.number != number]

    def draw(self) -> PastSelf | None:
        """The next opponent; None as long as there is none."""
        if not self.snapshots:
            return None
        weights = np.ones(len(self.snapshots))
        if self._config.self_play_opponents == "latest":
            weights[-1] = max(1, len(weights) - 1)
        elif self._config.self_play_opponents == "hard":
            weights = np.square([1 - one.results.score for one in self.snapshots])
        return self.snapshots[self._random.choice(len(weights), p=weights / weights.sum())]

    def played(self, number: int, score: float) -> None:
        """Takes in a game of policy 0 against a snapshot, which may have left the pool."""
        for one in self.snapshots:
            if one.number == number:
                one.results.add(score)
                expected = 1 / (1 + 10 ** ((one.rating - self.rating) / SCALE))
                self.rating += STEP * (score - expected)

    def state(self) -> dict[str, Any]:
        """Everything, in plain JSON types."""
        return {
            "snapshots": [asdict(one) for one in self.snapshots],
            "rating": self.rating,
            "num_made": self.num_made,
            "next_frames": self._next_frames,
            "random": self._random.bit_generator.state,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of `state`."""
        self.snapshots = [
            PastSelf(**{**one, "results": OpponentRecord(**one["results"])}) for one in map(dict, state["snapshots"])
        ]
        self.rating, self.num_made = float(state["rating"]), int(state["num_made"])
        self._next_frames = int(state["next_frames"])
        self._random.bit_generator.state = state["random"]
