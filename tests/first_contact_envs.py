"""Environments as real packages have them: correct, and unusual in one way each."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit, TransformReward
from sf_envs.counter import Counter
from sf_envs.zoo import Parallel


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


class Walkers:
    """A parallel environment of PettingZoo with two walkers; each observes its number and the step.

    Args:
        ends: step to the flags that it sets, of the form ``{3: {"a": "terminated"}}``.
        leaves: step to the agents that leave `agents` in it.
        silent: agents without an observation from the step on in which they end.
        late_reward: of agents that are listed although they have ended.
    """

    possible_agents = ("a", "b")

    def __init__(self, ends: Any = None, leaves: Any = None, silent: Any = (), late_reward: float = 0.0) -> None:
        self.ends, self.leaves, self.silent, self.late_reward = ends or {}, leaves or {}, silent, late_reward
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def observe(self) -> Any:
        shown = {agent: np.array([0, index, self.steps], np.float32) for index, agent in enumerate("ab")}
        return {agent: shown[agent] for agent in self.acted if not (agent in self.silent and agent in self.over)}

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.steps, self.over = list("ab"), 0, set[str]()
        self.acted = list("ab")
        return self.observe(), {}

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.agents)
        self.acted, self.steps = list(self.agents), self.steps + 1
        flags = self.ends.get(self.steps, {})
        rewards = {agent: self.late_reward if agent in self.over else float(self.steps) for agent in self.acted}
        terminated, truncated = (
            {agent: flags.get(agent) == kind for agent in self.acted} for kind in ("terminated", "truncated")
        )
        self.over |= set(flags)
        self.agents = [agent for agent in self.agents if agent not in self.leaves.get(self.steps, ())]
        return self.observe(), rewards, terminated, truncated, {}

    def close(self) -> None:
        """Nothing to close."""


BOTH_CUT = {"a": "truncated", "b": "truncated"}
APART = {"a": "terminated", "b": "truncated"}
ENDINGS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, str]]]] = {
    "apart": ({"ends": {3: APART}, "leaves": {3: "ab"}}, {"a": (3, "terminated"), "b": (3, "truncated")}),
    "agents not emptied": ({"ends": {3: BOTH_CUT}}, {"a": (3, "truncated"), "b": (3, "truncated")}),
    "stays listed": (
        {"ends": {2: {"a": "terminated"}, 4: {"b": "terminated"}}},
        {"a": (2, "terminated"), "b": (4, "terminated")},
    ),
    "is cut and stays listed": (
        {"ends": {2: {"a": "truncated"}, 4: APART}},
        {"a": (2, "truncated"), "b": (4, "truncated")},
    ),
    "leaves": (
        {"ends": {2: {"a": "terminated"}, 4: {"b": "truncated"}}, "leaves": {2: "a", 4: "b"}},
        {"a": (2, "terminated"), "b": (4, "truncated")},
    ),
    "leaves without a flag": (
        {"leaves": {2: "a", 3: "b"}, "ends": {3: {"b": "terminated"}}},
        {"a": (2, "truncated"), "b": (3, "terminated")},
    ),
    "last observation missing": (
        {"ends": {2: {"a": "terminated"}, 3: {"b": "terminated"}}, "leaves": {3: "ab"}, "silent": "ab"},
        {"a": (2, "terminated"), "b": (3, "terminated")},
    ),
}
"""Arguments of the walkers, and the step and the flag with which each of them ends."""


def walkers(**arguments: Any) -> Parallel:
    return Parallel(Walkers(**arguments))
