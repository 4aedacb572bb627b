"""Environments of agents that end apart or together, and one whose field only looks like a number of agents."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from sf_envs.counter import Counter
from sf_envs.zoo import Parallel


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


class OwnNumAgents(Counter):
    """An ordinary environment with a field of this name."""

    def __init__(self, num_agents: Any) -> None:
        super().__init__(episode_steps=4)
        self.num_agents = num_agents


def walkers(**arguments: Any) -> Parallel:
    return Parallel(Walkers(**arguments))
