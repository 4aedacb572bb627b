"""The policy that acts for each agent of an environment, asked once for each episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sf.config.self_play import MAPPING as SELF_PLAY
from sf.envs.scripted import function_named
from sf.envs.teams import BY_TEAM, seating
from sf.errors import ConfigError, text_of
from sf.shared.arena import Array
from sf.spaces import EnvInfo

Choose = Callable[[int, int, np.random.Generator], int]
"""Function of a user: index of the agent, number of the episode in its environment, random numbers; the policy."""

FORMS = ", expected random, by_agent, by_team, self_play, or module:function."


class Mapping:
    """Deals policies to the agents of an environment.

    `random` deals them as evenly as possible in random order, and `by_agent` gives agent i the policy i modulo their
    number. `by_team` does the same with teams, in the order in which their names come up. `self_play` lets policy 0
    play all agents, or one of two sides: the agents with even numbers or the others. The other side is one policy, each
    as often. ``module:function`` is asked once for each agent and episode.
    """

    def __init__(self, name: str, num_policies: int, info: EnvInfo, mirror: float = 0.0) -> None:
        """Finds the mapping.

        Args:
            name: random, by_agent, by_team, self_play or ``module:function``.
            num_policies: of the run.
            info: of one environment.
            mirror: share of the episodes in which policy 0 plays all agents, with `self_play`.

        Raises:
            ConfigError: there is no such mapping, it does not return a policy, or agents have no names of teams.
        """
        self.name, self.num_policies, self._agents = name, num_policies, seating(name, info)
        self._mirror = mirror
        is_ours = name in ("random", "by_agent", BY_TEAM, SELF_PLAY)
        self._choose = None if is_ours else function_named(name, "policy_mapping=", FORMS)
        if self._choose is not None:
            self.deal(0, np.random.default_rng(0))  # one that raises does so before the run

    def deal(self, episode: int, random: np.random.Generator) -> Array:
        """The policies of one episode, [num_agents] int64.

        Args:
            episode: its number in its environment, from 0.
            random: numbers of the group.

        Raises:
            ConfigError: the function of the user raises, or returns no policy of the run.
        """
        if self._choose is not None:
            return np.array([self._chosen(agent, episode, random) for agent in self._agents.tolist()], np.int64)
        if self.name == SELF_PLAY:
            return self._deal_sides(random)
        order = random.permutation(self.num_policies) if self.name == "random" else np.arange(self.num_policies)
        policies: Array = order[self._agents % self.num_policies]
        return policies

    def _deal_sides(self, random: np.random.Generator) -> Array:
        opponent = 0 if random.random() < self._mirror else random.integers(1, self.num_policies)
        policies: Array = np.where(self._agents % 2 == random.integers(2), 0, opponent)
        return policies

    def _chosen(self, agent: int, episode: int, random: np.random.Generator) -> int:
        assert self._choose is not None
        call = f"policy_mapping={self.name}, called with agent={agent} and episode={episode},"
        try:
            found: Any = self._choose(agent, episode, random)
        except Exception as error:
            raise ConfigError([f"{call} raised {type(error).__name__}: {text_of(error)}"]) from error
        if isinstance(found, (bool, np.bool_)) or not isinstance(found, (int, np.integer)):
            found_text = f"{found!r} of type {type(found).__name__}"
            raise ConfigError([f"{call} returned {found_text}, expected the number of a policy."])
        if not 0 <= found < self.num_policies:
            raise ConfigError([f"{call} returned {found}, expected a policy from 0 to {self.num_policies - 1}."])
        return int(found)
