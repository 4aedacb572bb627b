"""Gymnasium environments with several agents in one, ``multiagent/rware:rware-tiny-2ag-v2``, as rows of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sf.envs.place import entry_point, place_arguments
from sf.envs.presence import IS_ACTIVE
from sf.errors import EnvError
from sf_envs.padding import Padding

SEVERAL = list, tuple, np.ndarray
ALL = "__all__"
"""Key of flags in a dict for all agents at once, as RLlib has it."""


class SeveralAgents:
    """An environment whose spaces are Tuples or Dicts, with one entry per agent, after the multi-agent protocol.

    With Tuples, rewards and flags may come as lists with one entry per agent, or as one that counts for all of them.
    With Dicts, all that the environment takes and returns are dicts from agent to value. There `ALL` among the flags
    ends the agents that are left. An agent that has ended gets no actions, and its entries may be missing.
    """

    def __init__(self, env: Any) -> None:
        """Wraps the environment.

        Raises:
            EnvError: its spaces are no Tuples or Dicts of the same agents, at least 2, or cannot be filled up, see
                `Padding`.
        """
        from gymnasium import spaces

        self.env = env
        observations, actions = env.observation_space, env.action_space
        of_agents = [_by_agent(space, spaces) for space in (observations, actions)]
        self.agents: list[Any] = list(of_agents[1])
        self.num_agents, self.has_names = len(self.agents), isinstance(actions, spaces.Dict)
        self.agent_names = tuple(map(str, self.agents)) if self.has_names else ()
        if type(observations) is not type(actions) or set(of_agents[0]) != set(self.agents) or self.num_agents < 2:
            raise EnvError(
                f"{env} has the observation space {observations} and the action space {actions}, expected two Tuples "
                "or two Dicts with an entry for each of at least 2 agents. Use it without multiagent/ if it has one "
                "agent."
            )
        self._padding = Padding(self.agents, *([of_kind[agent] for agent in self.agents] for of_kind in of_agents))
        self.observation_space, self.action_space = self._padding.observation_space, self._padding.action_space
        self._seen: list[Any] = []
        self._over: set[Any] = set()
        """Agents that have ended."""
        self._to_come: set[Any] = set()
        """Agents of dicts that no observation has shown since the last reset."""

    def reset(self, **arguments: Any) -> tuple[list[Any], list[Any]]:
        self._over.clear()
        self._seen = []
        observations, info = self.env.reset(**arguments)
        self._to_come = set(self.agents) - set(observations) if self.has_names else set()
        infos = self._infos(info)
        infos = [one | {IS_ACTIVE: False} if self.agents[i] in self._to_come else one for i, one in enumerate(infos)]
        return self._filled_up(self._observations(observations, "reset"), infos), infos

    def step(self, actions: list[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any], list[Any]]:
        actions = [self._padding.act(agent, action) for agent, action in enumerate(actions)]
        acting: Any = tuple(actions)
        if self.has_names:
            pairs = zip(self.agents, actions, strict=True)
            acting = {agent: action for agent, action in pairs if agent not in self._over | self._to_come}
        observations, rewards, terminated, truncated, info = self.env.step(acting)
        terminated, truncated = self._flags(terminated), self._flags(truncated)
        infos = self._infos(info)
        if self.has_names:
            self._note_ends(terminated, truncated, infos)
        if self._to_come and (arrivals := self._to_come & set(observations)):
            infos = [one | {IS_ACTIVE: True} if self.agents[i] in arrivals else one for i, one in enumerate(infos)]
            self._to_come -= arrivals
        seen = self._filled_up(self._observations(observations, "step"), infos)
        return seen, self._for_each(rewards, 0.0), terminated, truncated, infos

    def _note_ends(self, terminated: list[Any], truncated: list[Any], infos: list[Any]) -> None:
        """Notes the ends of agents that have come; one that has ended before may come back."""
        told = zip(self.agents, infos, strict=True)
        back = {agent for agent, one in told if agent in self._over and one and one.get(IS_ACTIVE)}
        flags = zip(self.agents, terminated, truncated, strict=True)
        self._over |= {agent for agent, *ends in flags if any(ends) and agent not in self._to_come}
        self._over -= back

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _observations(self, found: Any, call: str) -> list[Any]:
        """One per agent: the last one of an agent that has ended and shows none.

        Raises:
            EnvError: another agent shows none.
        """
        if not self.has_names:
            return list(found)
        left_out = self._over | self._to_come
        missing = [agent for agent in self.agents if agent not in found and agent not in left_out]
        if missing:
            raise EnvError(
                f"{call} returned observations of {list(found)}, expected one of each agent that has not ended, also "
                f"of {missing}. Agents that act in turn are not supported; show them what they saw last."
            )
        before = self._seen or [None] * self.num_agents
        self._seen = [found.get(agent, last) for agent, last in zip(self.agents, before, strict=True)]
        return self._seen.copy()

    def _filled_up(self, observations: list[Any], infos: list[Any]) -> list[Any]:
        agents = zip(range(self.num_agents), observations, infos, strict=True)
        return [self._padding.observe(*agent) for agent in agents]

    def _flags(self, value: Any) -> list[Any]:
        """One per agent; `ALL` is that of every agent which has not ended before."""
        if not isinstance(value, Mapping):
            return self._for_each(value, False)
        all_end = value.get(ALL, False)
        return [value.get(agent, False) or (all_end and agent not in self._over) for agent in self.agents]

    def _for_each(self, value: Any, missing: Any) -> list[Any]:
        """The entries of a list or a dict, or one thing as often as there are agents."""
        if isinstance(value, Mapping):
            return [value.get(agent, missing) for agent in self.agents]
        return list(value) if isinstance(value, SEVERAL) and np.ndim(value) else [value] * self.num_agents

    def _infos(self, info: Any) -> list[Any]:
        if self.has_names:
            return [info.get(agent, {}) for agent in self.agents]
        return [info] * self.num_agents if isinstance(info, Mapping) else list(info)


def _by_agent(space: Any, spaces: Any) -> Mapping[Any, Any]:
    """The space of each agent; none if there is one for all of them."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else {}


def make(env_id: str, sf_worker: int = 0, sf_index: int = 0, **kwargs: Any) -> SeveralAgents:
    """An environment of Gymnasium.

    Args:
        env_id: of Gymnasium, or ``module:Id``.
        sf_worker, sf_index: passed on if the environment asks for them, see `sf.envs.place`.
        kwargs: of the environment.

    Raises:
        EnvError: its spaces do not fit, see `SeveralAgents`.
    """
    import gymnasium

    kwargs = place_arguments(entry_point(env_id), sf_worker, sf_index) | kwargs
    try:
        env = gymnasium.make(env_id, disable_env_checker=True, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        raise EnvError(
            f"There is no environment {env_id!r} of Gymnasium for multiagent/: {error} multiagent/module:Id imports "
            "the module first; games of PettingZoo are pettingzoo/*."
        ) from None
    return SeveralAgents(env)
