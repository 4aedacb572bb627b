"""What a run has reached when it ends: means over the episodes that its goal has looked at, if it had one."""

from __future__ import annotations

from sf.config import Config
from sf.console import rounded
from sf.monitor.by_agent import in_words
from sf.monitor.episodes import REWARD_EPISODES, EpisodeWindows
from sf.monitor.lines import outcome_line
from sf.monitor.settled import SettledEpisodes
from sf.monitor.snapshot import Snapshot


class Reached:
    """Means of each policy."""

    def __init__(self, config: Config, episodes: EpisodeWindows, settled: SettledEpisodes) -> None:
        """Looks at the windows whenever it is asked."""
        self._config, self._episodes, self._settled = config, episodes, settled
        run = config.run
        self._has_goal = run.stop_at_reward is not None
        self._num_episodes = run.stop_at_reward_episodes if self._has_goal else REWARD_EPISODES

    def means(self) -> dict[int, tuple[float, int]]:
        """Policy to its mean return and the number of episodes in it; without the policies that have finished none."""
        wanted = self._num_episodes
        means = {
            policy: (mean, min(wanted, self._episodes.num_kept(policy)))
            for policy, mean in self._episodes.mean_rewards(wanted).items()
        }
        if self._has_goal:
            settled = {policy: self._settled.mean_score(policy, wanted) for policy in means}
            means |= {policy: (mean, wanted) for policy, mean in settled.items() if mean is not None}
        return means

    def rewards(self) -> dict[int, float]:
        """Policy to its mean return."""
        return {policy: mean for policy, (mean, _) in self.means().items()}

    def line(self, first: Snapshot, last: Snapshot, exit_reason: str, has_nothing_left: bool) -> str:
        """The last line of a run between two snapshots."""
        means = {policy: mean for policy, mean in self.means().items() if policy not in self._config.acting_only}
        new_frames = sum(policy.new_frames for policy in last.policies)
        words = {policy: self._in_words(policy) for policy in means}
        seconds = last.time_s - first.time_s
        return outcome_line(means, last.frames, new_frames, seconds, exit_reason, has_nothing_left, words)

    def by_agent(self, num_episodes: int = REWARD_EPISODES) -> dict[int, str]:
        """Policy to words about its agents; empty words where an environment has one agent."""
        policies = range(self._config.run.num_policies)
        return {policy: in_words(self._episodes.returns_by_agent(policy, num_episodes)) for policy in policies}

    def _in_words(self, policy: int) -> str:
        """What a mean return does not say: the returns of each agent, and the score that the run looks at."""
        score = self._config.run.score
        value = None if score == "reward" else self._settled.mean_score(policy, self._num_episodes, score)
        of_agents = self.by_agent(self._num_episodes).get(policy, "")
        return "; ".join(part for part in (of_agents, "" if value is None else f"{score} {rounded(value)}") if part)
