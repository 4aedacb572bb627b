"""Says why a run goes on although the mean of the episodes that have ended has reached the goal."""

from __future__ import annotations

import math

from sf.config import RunConfig
from sf.console import rounded
from sf.monitor.hints import Seen
from sf.monitor.settled import LONGEST

FIRST_S = 5.0
"""It is said after so long, and once: most runs wait less than that."""


class LeftOut:
    """Says once that episodes take so long that decisions no longer wait for them."""

    def __init__(self) -> None:
        self._is_told = False

    def look(self, seen: Seen) -> str | None:
        """See `Hint`."""
        if self._is_told or not (number := seen.settled.num_endless):
            return None
        self._is_told = True
        episodes = "1 episode goes" if number == 1 else f"{number} episodes go"
        return (
            f"Warning: {episodes} on for more than about {LONGEST:,} steps, and so --stop_at_reward and the best "
            "checkpoint no longer wait for them. --max_episode_steps=N ends them, and then they count."
        )


class GoalWaits:
    """Looks at the means of policy 0."""

    def __init__(self, run: RunConfig) -> None:
        """Has seen nothing yet; without a goal, or with another score than the return, it says nothing."""
        self._goal = run.stop_at_reward if run.score == "reward" else None
        self._num_episodes = run.stop_at_reward_episodes
        self._since_s = math.inf
        self._told = False

    def look(self, seen: Seen) -> str | None:
        """See `Hint`."""
        now_s, ended, settled = seen.now.time_s, seen.ended, seen.settled
        if self._goal is None or self._told or ended.num_kept(0) < self._num_episodes:
            return None
        mean, sure = ended.mean_rewards(self._num_episodes)[0], settled.mean_score(0, self._num_episodes)
        if mean < self._goal or (sure is not None and sure >= self._goal):
            self._since_s = math.inf
            return None
        self._since_s = min(self._since_s, now_s)
        if now_s - self._since_s < FIRST_S:
            return None
        self._told = True
        return (
            f"The {self._num_episodes} episodes that ended last have a mean return of {rounded(mean)}. Longer episodes "
            f"that began before them go on, and --stop_at_reward={self._goal:g} waits for those."
        )
