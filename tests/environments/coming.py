"""Agents that come, go and come back within an episode. Without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from sf_envs.multiagent import SeveralAgents
from sf_envs.zoo import Parallel

from sf.envs import register_env

LIVES = {"a": [(0, 6, "truncated")], "b": [(2, 4, "terminated"), (5, 7, "terminated")], "c": [(3, 7, "truncated")]}
"""Agent to its lives: the step whose observation is the first one, 0 for that of the reset, the step in which it ends,
and how."""
NUM_STEPS = 7


class Comers:
    """A parallel environment of PettingZoo; agents observe [1, their number, step], and are paid the step."""

    possible_agents = tuple(LIVES)

    def __init__(self, lives: Any = None) -> None:
        self.lives, self.agents, self.steps = lives or LIVES, list[str](), 0

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def seen(self, agent: str) -> Any:
        return np.array([1, self.possible_agents.index(agent), self.steps], np.float32)

    def present(self) -> list[str]:
        return [agent for agent, lives in self.lives.items() if any(a <= self.steps < b for a, b, _ in lives)]

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        self.agents = self.present()
        return {agent: self.seen(agent) for agent in self.agents}, {}

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.agents)
        self.steps += 1
        acted, self.agents = self.agents, self.present()
        ends = {agent: kind for agent, lives in self.lives.items() for _, end, kind in lives if end == self.steps}
        told = dict.fromkeys([*acted, *self.agents])
        terminated, truncated = ({agent: ends.get(agent) == kind for agent in told} for kind in ENDS)
        return (
            {agent: self.seen(agent) for agent in told},
            dict.fromkeys(acted, float(self.steps)),
            *(
                terminated,
                truncated,
                {},
            ),
        )

    def close(self) -> None:
        """Nothing to close."""


ENDS = "terminated", "truncated"


def comers(**arguments: Any) -> Parallel:
    return Parallel(Comers(**arguments))


class Convoy:
    """The same as dicts of one Gymnasium environment, in which each agent has one life."""

    LIVES = {"a": [(0, 4, "terminated")], "b": [(2, 5, "truncated")]}  # noqa: RUF012

    def __init__(self) -> None:
        self.world = Comers(self.LIVES)
        self.observation_space, self.action_space = (
            spaces.Dict({agent: of_agent(agent) for agent in self.LIVES})
            for of_agent in (self.world.observation_space, self.world.action_space)
        )

    def reset(self, **_: Any) -> Any:
        return self.world.reset()

    def step(self, actions: Any) -> Any:
        return self.world.step(actions)

    def close(self) -> None:
        """Nothing to close."""


def convoy() -> SeveralAgents:
    return SeveralAgents(Convoy())


class Returning(Convoy):
    """Agent b is told of as ended before it comes; it ends in step 3 and comes back in step 4, as its info says."""

    LIVES = {"a": [(0, 6, "terminated")], "b": [(2, 3, "terminated"), (4, 6, "truncated")]}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.acted: list[list[str]] = []

    def step(self, actions: Any) -> Any:
        self.acted.append(sorted(actions))
        seen, rewards, terminated, truncated, _ = self.world.step(actions)
        steps = self.world.steps
        early = {"b": True} if steps < 2 else {}
        return seen, rewards, terminated | early, truncated, {"b": {"is_active": True}} if steps == 4 else {}


class Counting:
    """Agent 1 ends in step 2, comes back in step 3 and ends in step 5; each step has a hit."""

    num_agents = 2

    def __init__(self) -> None:
        world = Comers()
        self.observation_space, self.action_space = world.observation_space("a"), world.action_space("a")

    def reset(self, **_: Any) -> Any:
        self.steps = 0
        return [np.zeros(3, np.float32)] * 2, [{}, {}]

    def step(self, actions: Any) -> Any:
        self.steps += 1
        infos: list[dict[str, Any]] = [{"metrics": {"hits/sum": 1}} for _ in range(2)]
        if self.steps == 3:
            infos[1]["is_active"] = True
        over = [self.steps == 6, self.steps in (2, 5)]
        return [np.ones(3, np.float32)] * 2, [1.0, 1.0], over, [False, False], infos

    def close(self) -> None:
        """Nothing to close."""


SELDOM = {"a": [(0, 6, "truncated")], "b": [(9, 12, "terminated")], "c": [(0, 4, "terminated")]}
"""Agent b never comes, because the episode is over before."""
register_env("test/Comers", comers)
