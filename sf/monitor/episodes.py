"""The newest episodes of each policy that have ended, for what is shown. Decisions look at `sf.monitor.settled`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from sf.monitor.by_agent import returns_by_agent, scalars_by_agent
from sf.monitor.means import mean_of
from sf.shared.episodes import Episode

REWARD_EPISODES = 100
"""Episodes behind the reward on the console."""


class EpisodeWindows:
    """Means over the newest episodes of each policy, from the first episode on."""

    def __init__(self, num_policies: int, stats_avg: int, largest: int = REWARD_EPISODES, num_agents: int = 1) -> None:
        """Keeps nothing yet.

        Args:
            num_policies: each has a window.
            stats_avg: episodes behind the averaged curves.
            largest: most episodes that `mean_rewards` is asked for.
            num_agents: in one environment.
        """
        self._stats_avg, self._num_agents = stats_avg, num_agents
        size = max(stats_avg, REWARD_EPISODES, largest)
        self._episodes: list[deque[Episode]] = [deque(maxlen=size) for _ in range(num_policies)]
        self.counts = [0] * num_policies
        """Episodes of each policy since this start."""

    def add(self, episodes: Iterable[Episode]) -> None:
        """Takes in episodes, oldest first."""
        for episode in episodes:
            self.counts[episode.policy_id] += 1
            self._episodes[episode.policy_id].append(episode)

    def recall(self, episodes: Iterable[Episode]) -> None:
        """Takes in episodes from before this start, oldest first."""
        for episode in episodes:
            self._episodes[episode.policy_id].append(episode)

    def num_kept(self, policy_id: int) -> int:
        """Episodes that means can be taken over."""
        return len(self._episodes[policy_id])

    def mean_rewards(self, num_episodes: int = REWARD_EPISODES) -> dict[int, float]:
        """Policy to the mean return of its last episodes; policies without an episode are absent."""
        return {
            policy: mean_of(episode.reward for episode in list(episodes)[-num_episodes:])
            for policy, episodes in enumerate(self._episodes)
            if episodes
        }

    def returns_by_agent(self, policy_id: int, num_episodes: int = REWARD_EPISODES) -> dict[int, float]:
        """Agent to its mean return among the last episodes of a policy; empty for one agent."""
        return returns_by_agent(list(self._episodes[policy_id])[-num_episodes:], self._num_agents)

    def names(self, policy_id: int) -> list[str]:
        """Names of the metrics that any of its newest episodes has."""
        return sorted({name for episode in self._episodes[policy_id] for name in episode.metrics})

    def scalars(self, policy_id: int) -> dict[str, float]:
        """TensorBoard tags of the newest `stats_avg` episodes; empty before the first one."""
        episodes = list(self._episodes[policy_id])[-self._stats_avg :]
        if not episodes:
            return {}
        return (
            _spread("reward/reward", [episode.reward for episode in episodes])
            | _spread("len/len", [float(episode.length) for episode in episodes])
            | _spread("policy_stats/avg_true_objective", [episode.true_objective for episode in episodes])
            | _metrics(episodes)
            | scalars_by_agent(episodes, self._num_agents)
        )


def _metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """``env/<name>`` of each number of the environments' own, over those of the episodes that have it."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.metrics.items():
            values.setdefault(name, []).append(value)
    return {tag: value for name, numbers in values.items() for tag, value in _spread(f"env/{name}", numbers).items()}


def _spread(tag: str, values: list[float]) -> dict[str, float]:
    return {tag: mean_of(values), f"{tag}_min": min(values), f"{tag}_max": max(values)}
