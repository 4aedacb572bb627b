"""The last operator of every plan: results (row D35)."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sf.plans.episode import TeamEpisode
from sf.plans.local_iterator import LocalIterator
from sf.plans.rollout_ops import STEPS_SAMPLED
from sf.plans.worker_set import WorkerSet
from sf.shared.episodes import Episode

EPISODES_FOR_MEAN = 100
STEPS_OF_LAST_RESULT = "last_result_ts"
"""A counter, so that a restored plan goes on with it."""


class IterationIsOver:
    """True when enough seconds have passed and enough steps were sampled since the last time."""

    def __init__(self, seconds: float, steps: int) -> None:
        """The first iteration begins now."""
        self.seconds, self.steps = seconds, steps
        self._last_s = time.monotonic()

    def __call__(self, _: Any) -> bool:
        now_s, counters = time.monotonic(), LocalIterator.get_metrics().counters
        now_steps = counters[STEPS_SAMPLED]
        if now_s - self._last_s < self.seconds or now_steps - counters[STEPS_OF_LAST_RESULT] < self.steps:
            return False
        self._last_s, counters[STEPS_OF_LAST_RESULT] = now_s, now_steps
        return True


class CollectMetrics:
    """A result: returns and lengths of episodes, counters, timers, and the statistics of learning."""

    def __init__(self, workers: WorkerSet, min_history: int = EPISODES_FOR_MEAN) -> None:
        """Reports on these workers; means are over so many episodes."""
        self.workers = workers
        self._episodes: deque[Episode | TeamEpisode] = deque(maxlen=min_history)

    def __call__(self, _: Any) -> dict[str, Any]:
        metrics, new = LocalIterator.get_metrics(), self.workers.new_episodes()
        self._episodes += new
        result: dict[str, Any] = episode_results(self._episodes) | {"episodes_this_iter": len(new)}
        history = {"episode_reward": [e.reward for e in new], "episode_lengths": [e.length for e in new]}
        result |= {"hist_stats": history, "episode_rows": [e.row for e in new]}
        result |= {"timesteps_total": metrics.counters[STEPS_SAMPLED]}
        timers: dict[str, float] = {}
        for name, timer in metrics.timers.items():
            timers[f"{name}_time_ms"] = round(1000 * timer.mean, 3)
            if timer.mean_throughput:
                timers[f"{name}_throughput"] = round(timer.mean_throughput, 3)
        result |= {"timers": timers, "info": {**metrics.counters, **metrics.info}}
        return result


def episode_results(episodes: Sequence[Episode | TeamEpisode] | deque[Episode | TeamEpisode]) -> dict[str, Any]:
    """Mean, smallest and largest return, and mean length; nan where no episode has ended.

    Of several agents it is the sum over all of them, and ``policy_reward_mean`` has the mean per agent of each policy.
    """
    returns, lengths = ([getattr(episode, name) for episode in episodes] for name in ("reward", "length"))
    nothing, by_policy = not returns, defaultdict[str, list[float]](list)
    for episode in episodes:
        for name, reward in episode.by_policy if isinstance(episode, TeamEpisode) else ():
            by_policy[name].append(reward)
    return {
        "episode_reward_mean": np.nan if nothing else float(np.mean(returns)),
        "episode_reward_min": np.nan if nothing else float(np.min(returns)),
        "episode_reward_max": np.nan if nothing else float(np.max(returns)),
        "episode_len_mean": np.nan if nothing else float(np.mean(lengths)),
        "policy_reward_mean": {name: float(np.mean(rewards)) for name, rewards in by_policy.items()},
    }


def StandardMetricsReporting(
    train_op: LocalIterator,
    workers: WorkerSet,
    config: Mapping[str, Any],
    selected_workers: Sequence[Any] | None = None,
) -> LocalIterator:
    """A result each time that ``timesteps_per_iteration`` steps and ``min_iter_time_s`` seconds have passed.

    Args:
        train_op: is read for its effects.
        workers: of the plan.
        config: of the plan; both settings are 0 unless they are given.
        selected_workers: ignored; episodes of all workers count.
    """
    is_over = IterationIsOver(config.get("min_iter_time_s", 0), config.get("timesteps_per_iteration", 0))
    return train_op.filter(is_over).for_each(CollectMetrics(workers))
