"""The episodes behind decisions: an episode counts once all that began before it have ended.

Short episodes report first. The newest episodes that have ended are therefore mostly short ones, at the start of a run
above all, and their mean is that of short episodes. A stop or a best policy that looks at it is decided by length.

So decisions have a cut, the moment when the oldest episode that still goes on began. Every episode that began before
the cut has ended, whatever its length, and those are the episodes that count. Where all episodes are equally long, an
episode counts at most one length later.

An episode that goes on for `LONGEST` steps moves no cut any more: it may never end. How far it is follows from the
lengths of the episodes that the other rows have ended meanwhile, because rows advance together.

Time is the number of episodes that have ended so far. So a serial run decides the same whenever it is looked at.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from operator import itemgetter
from statistics import fmean

from sf.shared.episodes import Episode

MOST_WAITING = 32_768
"""Ended episodes that wait for older ones. Of more of them the oldest are forgotten, and none as old as they counts."""

LONGEST = 27_000
"""Steps from which an episode holds no decision back. Evaluations cut it there as well."""

BEGAN = itemgetter(0)


class SettledEpisodes:
    """The newest settled episodes of each policy."""

    def __init__(self, num_policies: int, num_rows: int, size: int, most_waiting: int = MOST_WAITING) -> None:
        """No episode has ended.

        Args:
            num_policies: each has a window.
            num_rows: streams of episodes, in each of which one episode begins when the one before ends.
            size: of a window.
            most_waiting: see `MOST_WAITING`.
        """
        self._began = dict.fromkeys(range(num_rows), 0)
        """By row: when the episode that goes on began."""
        self._ended = 0
        self._steps = dict.fromkeys(range(num_rows), 0)
        """By row: those of the episodes that have ended."""
        self._most_steps = 0
        """Most steps of any row: so far have others come at least."""
        self._others_at_began = dict.fromkeys(range(num_rows), 0)
        """By row: how far others had come when the episode that goes on began."""
        self._waiting: list[tuple[int, Episode]] = []
        """When an episode began, and the episode, in the order of their beginning."""
        self._most_waiting = max(most_waiting, 2 * size)
        self._forgotten = -1
        """When the youngest of the forgotten episodes began."""
        self._settled: list[deque[Episode]] = [deque(maxlen=size) for _ in range(num_policies)]
        self._is_closed = False

    def add(self, episodes: Iterable[Episode]) -> None:
        """Takes in episodes; those of a row in the order in which they ended."""
        if self._is_closed:
            return
        for episode in episodes:
            self._ended += 1
            if (began := self._began.get(episode.row, 0)) > self._forgotten:
                insort(self._waiting, (began, episode), key=BEGAN)
            self._began[episode.row] = self._ended
            self._steps[episode.row] = self._steps.get(episode.row, 0) + episode.length
            self._most_steps = max(self._most_steps, self._steps[episode.row])
            self._others_at_began[episode.row] = self._most_steps
        self._settle()
        self._forget()

    def close(self) -> None:
        """They have decided: those that end later change nothing of what is told about it."""
        self._is_closed = True

    @property
    def num_endless(self) -> int:
        """Episodes that go on for so long that no decision waits for them."""
        return sum(map(self._is_endless, self._began))

    def num_kept(self, policy_id: int) -> int:
        """Settled episodes that a mean can be taken over."""
        return len(self._settled[policy_id])

    def mean_score(self, policy_id: int, num_episodes: int, score: str = "reward") -> float | None:
        """Mean over those of the last settled episodes that have the number.

        Returns:
            None with fewer episodes, or if none of them has it.
        """
        episodes = list(self._settled[policy_id])[-num_episodes:]
        values = [value for episode in episodes if (value := episode.value_of(score)) is not None]
        return fmean(values) if values and len(episodes) == num_episodes else None

    def _is_endless(self, row: int) -> bool:
        return self._most_steps - self._others_at_began[row] >= LONGEST

    def _settle(self) -> None:
        cut = min((began for row, began in self._began.items() if not self._is_endless(row)), default=self._ended)
        number = bisect_left(self._waiting, cut, key=BEGAN)
        for _, episode in self._waiting[:number]:
            self._settled[episode.policy_id].append(episode)
        del self._waiting[:number]

    def _forget(self) -> None:
        number = len(self._waiting) - self._most_waiting
        if number > 0:
            self._forgotten = self._waiting[number - 1][0]
            del self._waiting[: bisect_left(self._waiting, self._forgotten + 1, key=BEGAN)]
