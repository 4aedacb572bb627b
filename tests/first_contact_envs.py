"""Environments as real packages have them: correct, and unusual in one way each."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit, TransformReward
from sf_envs.counter import Counter


class EndsEarly(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends every episode after two steps, and says nothing of it in info."""

    def reset(self, **arguments: Any) -> Any:
        self.steps = 0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or self.steps == 2, truncated, info


class LosesLives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says that the episode goes on after every second step; the reset goes on with it."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.steps, self.is_over = 0, True

    def reset(self, **arguments: Any) -> Any:
        if self.is_over or arguments.get("seed") is not None:
            self.steps, self.is_over = 0, False
            return self.env.reset(**arguments)
        return self.env.unwrapped._observe(), {}  # type: ignore[attr-defined]

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.is_over = terminated or truncated
        if self.is_over or self.steps % 2:
            return observation, reward, terminated, truncated, info
        return observation, reward, True, False, info | {"episode_continues": True}


def raw(steps: int) -> Any:
    """The step i of an episode is worth i; `RecordEpisodeStatistics` sees that."""
    return RecordEpisodeStatistics(Counter(episode_steps=steps))


def halved(env: Any) -> Any:
    return TransformReward(env, lambda reward: float(reward) / 2)


def cut_above_statistics() -> Any:
    return TimeLimit(raw(10), 3)


def ended_above_statistics() -> Any:
    return EndsEarly(raw(10))


def shaped_above_statistics() -> Any:
    return halved(raw(4))


def lives_above_statistics() -> Any:
    return halved(LosesLives(raw(5)))


def lives_alone() -> Any:
    return LosesLives(Counter(episode_steps=5))


class OwnEpisode(Counter):
    """Has the number of the episode in info, under the name that Gymnasium's statistics have as well."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, info | {"episode": self.episode}


def numbers_its_episodes() -> Any:
    return OwnEpisode(episode_steps=4)


COUNTED = {
    cut_above_statistics: (6.0, 3),
    ended_above_statistics: (3.0, 2),
    shaped_above_statistics: (10.0, 4),
    lives_above_statistics: (15.0, 5),
    lives_alone: (15.0, 5),
    numbers_its_episodes: (10.0, 4),
}
"""Return and length of every episode of these environments."""


def as_one(make: Any, mode: str, num_envs: int) -> SyncVectorEnv:
    """Several of them as one of Gymnasium's vector environments."""
    return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode[mode])
