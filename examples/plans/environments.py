"""Environments of several agents for the plans beside this file, in the protocol of docs/environments/README.md."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

import sf

Lists = tuple[list[Any], list[float], list[bool], list[bool], list[dict[str, Any]]]


class TeamCartPole:
    """Four cart poles side by side; each agent balances its own, and the episode goes on until the last one falls."""

    num_agents = 4

    def __init__(self) -> None:
        self._poles = [gym.make("CartPole-v1") for _ in range(self.num_agents)]
        self.observation_space, self.action_space = self._poles[0].observation_space, self._poles[0].action_space
        self._is_over = [True] * self.num_agents

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Any], list[dict[str, Any]]]:
        self._is_over = [False] * self.num_agents
        seeds = [None if seed is None else seed * self.num_agents + agent for agent in range(self.num_agents)]
        return [pole.reset(seed=own)[0] for pole, own in zip(self._poles, seeds, strict=True)], [{}] * self.num_agents

    def step(self, actions: Any) -> Lists:
        found = [self._one(agent, int(action)) for agent, action in enumerate(actions)]
        observations, rewards, terminated, truncated = (list(column) for column in zip(*found, strict=True))
        return observations, rewards, terminated, truncated, [{}] * self.num_agents

    def _one(self, agent: int, action: int) -> tuple[Any, float, bool, bool]:
        if self._is_over[agent]:
            return np.zeros(4, np.float32), 0.0, False, False
        observation, reward, terminated, truncated, _ = self._poles[agent].step(action)
        self._is_over[agent] = terminated or truncated
        return observation, float(reward), terminated, truncated

    def close(self) -> None:
        for pole in self._poles:
            pole.close()


class RockPaperScissors:
    """Ten moves of two agents, who see the last move of each other, 0 at the start; a win counts 1, a loss -1."""

    num_agents = 2
    observation_space, action_space = gym.spaces.Discrete(3), gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[int], list[dict[str, Any]]]:
        self._moves = 0
        return [0, 0], [{}, {}]

    def step(self, actions: Any) -> Lists:
        first, second = map(int, actions)
        self._moves += 1
        won = {0: 0.0, 1: 1.0, 2: -1.0}[(first - second) % 3]
        is_over = self._moves == 10
        return [second, first], [won, -won], [is_over] * 2, [False] * 2, [{}, {}]

    def close(self) -> None:
        pass


sf.register_env("TeamCartPole", TeamCartPole)
sf.register_env("RockPaperScissors", RockPaperScissors)
