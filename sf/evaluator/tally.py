"""The episodes of an evaluation that count, summed up row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sf.envs.scores import Scores
from sf.envs.stepping import NO_ROWS, Ended
from sf.shared.arena import Array


@dataclass
class Episodes:
    """The episodes of one policy."""

    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    num_cut: int = 0
    """Episodes that `max_episode_steps` has cut."""
    metrics: list[dict[str, float]] = field(default_factory=list)
    """Numbers of the environment's own of each of them."""
    agents: list[int] = field(default_factory=list)
    """The agent of its environment that each of them belongs to."""
    envs: list[int] = field(default_factory=list)
    """The environment that each of them was played in, counted in its process."""
    num_agents: int = 1
    """Agents in an environment."""
    games: list[int] = field(default_factory=list)
    """The episode of that environment: agents may end, and come back, before it does."""

    def mean(self, score: str) -> float:
        """Mean of the returns for ``reward``, of the metric NAME for ``env/NAME``; nan if no episode has it."""
        if score == "reward":
            return float(np.mean(self.rewards)) if self.rewards else math.nan
        name = score.removeprefix("env/")
        values = [metrics[name] for metrics in self.metrics if name in metrics]
        return float(np.mean(values)) if values else math.nan


class Tally:
    """Sums up rewards row by row and keeps the episodes that count."""

    def __init__(
        self,
        num_episodes: int,
        num_envs: int,
        policy_ids: Array,
        num_blocks: int = 1,
        longest: float = math.inf,
    ) -> None:
        """Deals the episodes to the environments.

        Args:
            num_episodes: of each block of environments.
            num_envs: environments of a block.
            policy_ids: [rows] the policy that acts for each row; the rows of an environment lie side by side.
            num_blocks: of environments.
            longest: steps after which episodes are cut.
        """
        self._longest = longest
        self._policy_ids, self._rows_per_env = policy_ids, len(policy_ids) // (num_envs * num_blocks)
        self.episodes = [Episodes(num_agents=self._rows_per_env) for _ in range(int(policy_ids.max()) + 1)]
        share = [num_episodes // num_envs + (i < num_episodes % num_envs) for i in range(num_envs)]
        self._remaining = np.array(share * num_blocks)
        self._games = np.zeros_like(self._remaining)
        """Episodes of each environment that are over."""
        self._num_wanted = int(self._remaining.sum())
        self._scores = Scores(len(policy_ids))

    @property
    def is_complete(self) -> bool:
        """Whether every environment has played its episodes."""
        return not self._remaining.any()

    @property
    def num_done(self) -> int:
        """Episodes of all environments that have ended and count; one of several agents is one."""
        return self._num_wanted - int(self._remaining.sum())

    def add(self, rewards: Array, ended: Sequence[Ended], fillers: Array = NO_ROWS) -> None:
        """Takes in one step: the rewards of all rows, the rows whose episode it ended, those that it only reset."""
        self._scores.add(rewards)
        self._scores.skip(fillers)
        over = set()
        for end in ended:
            score, env = self._scores.end(end), end.row // self._rows_per_env
            if score is None or not self._remaining[env]:
                continue
            episodes = self.episodes[self._policy_ids[end.row]]
            episodes.rewards.append(score[0])
            episodes.lengths.append(score[1])
            episodes.metrics.append(score[3])
            episodes.agents.append(end.row % self._rows_per_env)
            episodes.envs.append(env)
            episodes.games.append(int(self._games[env]))
            episodes.num_cut += end.truncated and not end.terminated and score[1] >= self._longest
            if end.is_last:
                over.add(env)
        self._remaining[sorted(over)] -= 1
        self._games[sorted(over)] += 1
