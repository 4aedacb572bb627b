"""Gymnasium environments with several agents in one, ``multiagent/rware:rware-tiny-2ag-v2``, as rows of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sf.envs.place import entry_point, place_arguments
from sf.errors import EnvError

SEVERAL = list, tuple, np.ndarray


class TupleAgents:
    """An environment whose spaces are Tuples, with one entry per agent, after the multi-agent protocol.

    Rewards and flags may come as lists with one entry per agent, or as one that counts for all of them.
    """

    def __init__(self, env: Any) -> None:
        """Wraps the environment.

        Raises:
            EnvError: its spaces are no Tuples of the same length, at least 2, or differ between agents.
        """
        from gymnasium import spaces

        self.env = env
        observations, actions = env.observation_space, env.action_space
        both_are = isinstance(observations, spaces.Tuple) and isinstance(actions, spaces.Tuple)
        self.num_agents = len(actions.spaces) if isinstance(actions, spaces.Tuple) else 0
        if not both_are or len(observations.spaces) != self.num_agents or self.num_agents < 2:
            raise EnvError(
                f"{env} has the observation space {observations} and the action space {actions}, expected two Tuples "
                "with an entry for each of at least 2 agents. Use it without multiagent/ if it has one agent."
            )
        self.observation_space, self.action_space = observations.spaces[0], actions.spaces[0]
        for kind, space in (("observation", observations), ("action", actions)):
            for agent, own in enumerate(space.spaces):
                if own != space.spaces[0]:
                    raise EnvError(
                        f"Agents 0 and {agent} have different {kind} spaces, {space.spaces[0]} and {own}. Make them "
                        "alike with a wrapper, for example by padding the smaller one."
                    )

    def reset(self, **arguments: Any) -> tuple[list[Any], list[Any]]:
        observations, info = self.env.reset(**arguments)
        return list(observations), self._infos(info)

    def step(self, actions: list[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any], list[Any]]:
        observations, rewards, terminated, truncated, info = self.env.step(tuple(actions))
        return (
            list(observations),
            self._for_each(rewards),
            self._for_each(terminated),
            self._for_each(truncated),
            self._infos(info),
        )

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _for_each(self, value: Any) -> list[Any]:
        """The entries of a list, or one thing as often as there are agents."""
        return list(value) if isinstance(value, SEVERAL) and np.ndim(value) else [value] * self.num_agents

    def _infos(self, info: Any) -> list[Any]:
        return [info] * self.num_agents if isinstance(info, Mapping) else list(info)


def make(env_id: str, sf_worker: int = 0, sf_index: int = 0, **kwargs: Any) -> TupleAgents:
    """An environment of Gymnasium.

    Args:
        env_id: of Gymnasium, or ``module:Id``.
        sf_worker, sf_index: passed on if the environment asks for them, see `sf.envs.place`.
        kwargs: of the environment.

    Raises:
        EnvError: its spaces do not fit, see `TupleAgents`.
    """
    import gymnasium

    kwargs = place_arguments(entry_point(env_id), sf_worker, sf_index) | kwargs
    return TupleAgents(gymnasium.make(env_id, disable_env_checker=True, **kwargs))
