"""Environments of several agents with the state of all of them, ``central/sf/Harvest-v0``, for a centralised critic.

The critic of MAPPO reads the state and the policy reads its own observation (Yu et al. 2022, "The Surprising
Effectiveness of PPO in Cooperative Multi-Agent Games", section 3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from sf.envs import find_env
from sf.envs.presence import Presence
from sf.errors import EnvError

Array = npt.NDArray[Any]
OWN, STATE, AGENT = "obs", "state", "agent"


class Central:
    """An environment after the multi-agent protocol, whose agents observe a Dict.

    `obs` is what the agent observes by itself; entries of a Dict keep their keys instead. `state` is the state of the
    environment, [S], of its method `state()`, as PettingZoo has it. Without one it is the observations of all agents
    side by side, zeros for those that are not there. `agent` tells the agents apart, [num_agents].
    """

    def __init__(self, env: Any) -> None:
        """Wraps an environment.

        Raises:
            EnvError: it has one agent, or neither a state of numbers nor observations of numbers.
        """
        self.env, self.num_agents, self.action_space = env, getattr(env, "num_agents", 1), env.action_space
        self.agent_names: tuple[str, ...] = getattr(env, "agent_names", ())
        if self.num_agents < 2:
            raise EnvError("central/ adds the state of all agents, but there is one. Leave central/ out.")
        own = env.observation_space
        self._has_keys = isinstance(own, spaces.Dict)
        parts = dict(own.spaces) if self._has_keys else {OWN: own}
        if taken := sorted({STATE, AGENT} & parts.keys()):
            raise EnvError(f"central/ adds the key {taken[0]!r}, which observations have already. Leave central/ out.")
        self._asked = _with_state(env)
        self._blank: Array = np.zeros(0, np.float32)
        """In the place of an agent that is not there."""
        self._presence = Presence(self.num_agents)
        if self._asked is not None:
            state = _space(self._asked)
        elif isinstance(own, spaces.Box):
            self._blank = np.zeros(spaces.flatdim(own), np.float32)
            state = spaces.Box(-np.inf, np.inf, (len(self._blank) * self.num_agents,))
        else:
            raise EnvError(
                f"central/ puts the observations of all agents side by side, but they are {own}, expected a Box. Give "
                "the environment a method state() and a state_space."
            )
        self._ids = np.eye(self.num_agents, dtype=np.float32)
        ids = spaces.Box(0.0, 1.0, (self.num_agents,))
        self.observation_space = spaces.Dict({**parts, STATE: state, AGENT: ids})

    def reset(self, **arguments: Any) -> tuple[list[Any], list[Any]]:
        """The first observations."""
        observations, infos = self.env.reset(**arguments)
        self._presence.begin(infos)
        return self._seen(observations, self._presence.absent), infos

    def step(self, actions: list[Any]) -> tuple[list[Any], Any, Any, Any, Any]:
        """One step of all agents."""
        observations, *results = self.env.step(actions)
        rewards, terminated, truncated, infos = results
        presence = self._presence
        arrivals = presence.arrivals(infos) if presence.absent else set()
        hidden = presence.absent - arrivals
        presence.end(agent for agent in presence.present if terminated[agent] or truncated[agent])
        presence.come(arrivals)
        return self._seen(observations, hidden), rewards, terminated, truncated, infos

    def render(self) -> Any:
        """What the environment draws."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _seen(self, observations: list[Any], hidden: set[int]) -> list[Any]:
        """What each agent observes; `hidden` are not there, nor have they ended just now."""
        state = self._state([None if agent in hidden else own for agent, own in enumerate(observations)])
        return [
            None if own is None else {**(own if self._has_keys else {OWN: own}), STATE: state, AGENT: self._ids[agent]}
            for agent, own in enumerate(observations)
        ]

    def _state(self, observations: list[Any]) -> Array:
        if self._asked is not None:
            return np.asarray(self._asked.state(), np.float32)
        rows = [self._blank if own is None else np.asarray(own, np.float32).reshape(-1) for own in observations]
        return np.concatenate(rows)


def make(name: str, sf_worker: int = 0, sf_index: int = 0, **kwargs: Any) -> Central:
    """The environment of several agents with this id, and the state of all of them.

    Raises:
        EnvError: there is none, or it has one agent.
    """
    return Central(replace(find_env(name, kwargs), worker=sf_worker).make(index=sf_index))


def _with_state(env: Any) -> Any:
    """The environment itself or the one below it that tells a state; None if none does."""
    while env is not None:
        if callable(getattr(env, "state", None)) and getattr(env, "state_space", None) is not None:
            return env
        env = getattr(env, "env", None)
    return None


def _space(env: Any) -> spaces.Box:
    """The space of a state, in float32 and without limits, which few environments keep to."""
    space = env.state_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise EnvError(f"central/ takes the state of the environment, which is {space}, expected a Box of numbers [S].")
    return spaces.Box(-np.inf, np.inf, space.shape)
