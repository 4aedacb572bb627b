"""The mean scores of the last episodes of a policy, by which a run decides."""

from __future__ import annotations

from sf.console import Console
from sf.monitor import Monitor

EPISODES_FOR_MEAN = 100
"""A mean over fewer episodes says too little to call a checkpoint the best one."""


class RecentScores:
    """Warns where the episodes lack the number that is asked for."""

    def __init__(self, monitor: Monitor, score: str) -> None:
        """Takes what knows the episodes, and the name of the number that counts."""
        self._monitor, self._score = monitor, score
        self._misses_score = False
        """Whether it was told that no episode has the number."""

    def mean_reward(self, policy_id: int) -> float | None:
        """Mean return, whatever the score is; None while there are too few episodes."""
        return self._monitor.settled.mean_score(policy_id, EPISODES_FOR_MEAN)

    def mean(self, policy_id: int, num_episodes: int = EPISODES_FOR_MEAN) -> float | None:
        """Mean score of the last episodes; None while there are too few, or if none of them has the number."""
        settled, score = self._monitor.settled, self._score
        mean = settled.mean_score(policy_id, num_episodes, score)
        if mean is None and not self._misses_score and settled.num_kept(policy_id) >= num_episodes:
            self._misses_score = True
            names = self._monitor.episodes.names(policy_id)
            there = ", ".join(f"env/{name}" for name in names) or "no numbers of its own"
            Console().line(
                f"Warning: none of the last {num_episodes} episodes has score={score}, so nothing counts as "
                f"the best and --stop_at_reward ends nothing. The environment reports {there}."
            )
        return mean
