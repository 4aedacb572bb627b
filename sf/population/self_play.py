"""Seats the opponents of policy 0: takes snapshots of it, draws who plays next, and counts the games.

In: facts of the run, games from shared memory, answers of learners. Out: orders, curves, and `self_play.json`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sf.console import Console
from sf.population.director import NoDirector, RunFacts
from sf.population.pool import OpponentRecord, PastSelf, Pool
from sf.shared.matches import MatchRing
from sf.shared.messages import CheckpointSaved, Order, PlayAs, SaveRequest, Seated
from sf.storage.names import NAME, POOL
from sf.storage.objects import damaged, json_object, write_object

SELF_PLAY = "self_play.json"
"""File with the pool, below the directory of the experiment."""


class SelfPlay(NoDirector):
    """Directs a run in which policy 0 learns against the pool of its past selves."""

    def __init__(
        self,
        pool: Pool,
        seats: Sequence[int],
        games: int,
        directory: Path,
        rings: Sequence[MatchRing],
        anchors: Mapping[int, str],
    ) -> None:
        """Goes on with the pool that the directory has, or begins with an empty one.

        Args:
            pool: empty.
            seats: policies that play as snapshots.
            games: against a snapshot before the next one takes its seat.
            directory: of the experiment.
            rings: games that the rollout workers have seen.
            anchors: frozen policies, which never change, by number.
        """
        self.pool, self._games, self._directory, self._rings = pool, games, directory, rings
        self._anchors = {policy: OpponentRecord() for policy in anchors}
        self._names = dict(anchors)
        self._playing: dict[int, PastSelf | None] = dict.fromkeys(seats)
        """Snapshot that each seat plays, or was told to."""
        self._awaited: set[int] = set()
        """Seats that were told and have not answered."""
        self._known: dict[tuple[int, int], int] = {}
        """Number of the snapshot behind the version of a seat."""
        self._left = dict.fromkeys(seats, 0)
        self._is_asked = self._is_at_its_place = False
        self._resume()

    def poll(self, facts: RunFacts) -> Iterable[tuple[int, Order]]:
        """Counts new games, asks for a snapshot when one is due, and seats opponents."""
        self._count()
        learner = facts.policies[0]
        if not self._is_at_its_place:
            self._is_at_its_place = True
            self._go_back(learner.frames)
        if not self._is_asked and self.pool.is_snapshot_due(learner.frames):
            self._is_asked = True
            yield 0, SaveRequest("pool", learner.score())
        for seat in self._playing:
            if seat not in self._awaited and self._left[seat] <= 0 and (drawn := self.pool.draw()) is not None:
                self._playing[seat], self._left[seat] = drawn, self._games
                self._awaited.add(seat)
                yield seat, PlayAs(drawn.number, str(self._directory / drawn.path))

    def checkpoint_saved(self, saved: CheckpointSaved) -> None:
        """Takes a snapshot of policy 0 into the pool."""
        if saved.kind != "pool":
            return
        self._is_asked = False
        if saved.error:
            return  # the monitor has said it; the next poll asks again
        path = Path(saved.path)
        self.pool.add(str(path.relative_to(self._directory)), int(path.name.rpartition("_")[2]))
        Console().line(
            f"Snapshot {self.pool.num_made - 1} of policy 0 is in the pool of {len(self.pool.snapshots)}: rating "
            f"{self.pool.rating:.0f}, score against the pool {self.pool.score:.2f}"
        )
        seated = {one.number for one in self._playing.values() if one is not None}
        for removed in self.pool.surplus(seated):
            shutil.rmtree(self._directory / removed.path, ignore_errors=True)
        self._write()

    def seated(self, seated: Seated) -> None:
        """Notes which version of a seat is which snapshot; one that cannot be read leaves the pool."""
        self._awaited.discard(seated.policy_id)
        if seated.error:
            Console().line(f"Warning: a snapshot has left the pool of self-play: {seated.error}")
            self.pool.remove(seated.snapshot)
            self._playing[seated.policy_id], self._left[seated.policy_id] = None, 0
            return
        self._known[seated.policy_id, seated.version] = seated.snapshot

    def scalars(self, policy_id: int) -> Mapping[str, float]:
        """The rating and the scores of policy 0, or the snapshot that a seat plays."""
        if policy_id:
            playing = self._playing.get(policy_id)
            if playing is None:
                return {}
            return {"self_play/snapshot": playing.number, "self_play/snapshot_frames": playing.frames}
        anchors = {f"self_play/score_against_{policy}": one.score for policy, one in self._anchors.items()}
        own = {"elo": self.pool.rating, "score": self.pool.score, "snapshots": float(len(self.pool.snapshots))}
        return anchors | {f"self_play/{name}": value for name, value in own.items()}

    def close(self) -> None:
        """Counts the last games and writes them."""
        self._count()
        self._write()

    def _go_back(self, frames: int) -> None:
        """Forgets the snapshots of a future that is lost, because the run was killed after its newest checkpoint."""
        forgotten = self.pool.go_back(frames)
        if forgotten:
            self._write()
            Console().line(f"Snapshots of self-play after the newest checkpoint are forgotten: {len(forgotten)}.")
        for one in forgotten:
            shutil.rmtree(self._directory / one.path, ignore_errors=True)

    def _count(self) -> None:
        for ring in self._rings:
            for match in ring.new_matches():
                if match.opponent in self._anchors:
                    self._anchors[match.opponent].add(match.score)
                elif (number := self._known.get((match.opponent, match.version))) is not None:
                    self.pool.played(number, match.score)
                    playing = self._playing[match.opponent]
                    self._left[match.opponent] -= playing is not None and playing.number == number

    def _resume(self) -> None:
        path = self._directory / SELF_PLAY
        if not path.exists():
            return
        content = json_object(path)
        try:
            self.pool.load_state(content["pool"])
            self._resume_anchors(content["anchors"])
            if not all(_is_in_pool(one.path) for one in self.pool.snapshots):
                raise ValueError("a path outside of the pool")  # snapshots that leave it are deleted
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(path, "the pool of self-play") from error
        for one in list(self.pool.snapshots):
            if not (self._directory / one.path).is_dir():
                self.pool.remove(one.number)

    def _resume_anchors(self, anchors: Mapping[str, Any]) -> None:
        """The results against frozen policies that are still the same."""
        for policy in self._anchors:
            if (saved := anchors.get(str(policy))) and saved["name"] == self._names[policy]:
                self._anchors[policy] = OpponentRecord(**saved["results"])

    def _write(self) -> None:
        """All of it in one step; a disk that is full loses results and not the run."""
        anchors = {
            policy: {"name": self._names[policy], "results": asdict(one)} for policy, one in self._anchors.items()
        }
        content: dict[str, Any] = {"pool": self.pool.state(), "anchors": anchors}
        try:
            write_object(self._directory / SELF_PLAY, content, indent=None, is_durable=True)
        except OSError as error:
            Console().line(f"Warning: {SELF_PLAY} was not written to {self._directory}: {error}")


def _is_in_pool(path: str) -> bool:
    """Whether a path of the file is one of a snapshot, and of nothing else on the machine."""
    *folders, name = Path(path).parts
    return folders == ["checkpoint_p0", POOL] and NAME.fullmatch(name) is not None
