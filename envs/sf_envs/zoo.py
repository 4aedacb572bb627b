"""PettingZoo parallel environments, ``pettingzoo/mpe2.simple_spread_v3``, as rows of agents."""

from __future__ import annotations

import importlib.util
import pkgutil
import warnings
from typing import Any

from sf.envs.place import place_arguments
from sf.envs.presence import IS_ACTIVE
from sf.errors import EnvError
from sf_envs.members import unknown_member
from sf_envs.padding import Padding


class Parallel:
    """A parallel environment after the multi-agent protocol; agent names become positions.

    Different spaces are filled up, see `Padding`. An agent takes part while it is in `agents`: from the start or from
    a later step on, and again after an end. It ends with its own flags; one that leaves `agents` without a flag counts
    as truncated.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents: list[str] = list(env.possible_agents)
        self.num_agents, self.agent_names = len(self.agents), tuple(self.agents)
        self._absent: set[str] = set()
        self._listed: set[str] = set()
        """Those in `agents` after the last step; one that has ended may be among them."""
        if self.num_agents < 2:
            raise EnvError(f"{env} has the agents {self.agents}, expected at least 2 of them.")
        of_agents = ([kind(agent) for agent in self.agents] for kind in (env.observation_space, env.action_space))
        self._padding = Padding(self.agents, *of_agents)
        self.observation_space, self.action_space = self._padding.observation_space, self._padding.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Any], list[Any]]:
        observations, infos = self.env.reset(seed=seed, options=options)
        self._listed = self._known_agents()
        self._absent = set(self.agents) - self._listed
        self._expect_observations(self._listed, observations, "reset")
        if not self._listed:
            raise EnvError(f"agents is empty after reset, expected at least one of {self.agents}.")
        told = [
            {**(infos.get(agent) or {}), IS_ACTIVE: False} if agent in self._absent else infos.get(agent, {})
            for agent in self.agents
        ]
        seen = enumerate(zip(self.agents, told, strict=True))
        return [self._padding.observe(index, observations.get(agent), info) for index, (agent, info) in seen], told

    def step(self, actions: list[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any], list[Any]]:
        acting = {
            agent: self._padding.act(index, action)
            for index, (agent, action) in enumerate(zip(self.agents, actions, strict=True))
            if agent in self.env.agents
        }
        result = self.env.step(acting)
        if unknown := set(result[1]) - set(self.agents):
            raise EnvError(
                f"step returned a reward for {', '.join(sorted(map(str, unknown)))}, which is not among "
                f"possible_agents: {', '.join(map(str, self.agents))}."
            )
        before, self._listed = self._listed, self._known_agents()
        arrivals = (self._listed - before) & self._absent
        self._expect_observations(arrivals, result[0], "step")
        rows = [
            self._arrival(agent, *result) if agent in arrivals else self._row(agent, *result) for agent in self.agents
        ]
        self._absent -= arrivals
        observations, rewards, terminated, truncated, infos = map(list, zip(*rows, strict=True))
        seen = [
            self._padding.observe(*agent) for agent in zip(range(self.num_agents), observations, infos, strict=True)
        ]
        return seen, rewards, terminated, truncated, infos

    def _row(
        self,
        agent: str,
        observations: dict[str, Any],
        rewards: dict[str, Any],
        terminated: dict[str, Any],
        truncated: dict[str, Any],
        infos: dict[str, Any],
    ) -> tuple[Any, Any, Any, Any, Any]:
        """The results for one agent; of one that is not there, see `sf.envs`, only the reward is looked at."""
        if agent in self._absent:
            return None, rewards.get(agent, 0.0), False, False, {}
        ended, cut = terminated.get(agent, False), truncated.get(agent, False)
        if agent not in self.env.agents and not ended:
            cut = True
        if agent not in rewards or (agent not in observations and not ended):
            what = "reward" if agent not in rewards else "last observation" if cut else "observation"
            why = ", whose value it needs because it was truncated" if what == "last observation" else ""
            raise EnvError(f"step returned no {what} for {agent}{why}. Return one for each agent that has acted.")
        if ended or cut:
            self._absent.add(agent)
        return observations.get(agent), rewards[agent], ended, cut, infos.get(agent, {})

    def _arrival(
        self, agent: str, observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any
    ) -> tuple[Any, ...]:
        """The results for an agent that takes part from this observation on."""
        info = {**(infos.get(agent) or {}), IS_ACTIVE: True}
        ends = terminated.get(agent, False), truncated.get(agent, False)
        return observations[agent], rewards.get(agent, 0.0), *ends, info

    def _known_agents(self) -> set[str]:
        """Those in `agents`.

        Raises:
            EnvError: one of them has no row.
        """
        listed = set(self.env.agents)
        if unknown := sorted(listed - set(self.agents)):
            raise EnvError(
                f"agents has {', '.join(unknown)}, which possible_agents has not: {self.agents}. Name every agent that "
                "may come there."
            )
        return listed

    def _expect_observations(self, agents: set[str], observations: dict[str, Any], call: str) -> None:
        if missing := [agent for agent in self.agents if agent in agents and agent not in observations]:
            raise EnvError(
                f"{call} returned no observation for {', '.join(missing)}, expected one for each agent in agents."
            )

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def make(module: str, sf_worker: int = 0, sf_index: int = 0, **kwargs: Any) -> Parallel:
    """A parallel environment.

    Args:
        module: that has the function parallel_env, below pettingzoo (``sisl.multiwalker_v9``) or anywhere
            (``mpe2.simple_spread_v3``).
        sf_worker, sf_index: passed on if that function asks for them, see `sf.envs.place`.
        kwargs: of that function.

    Raises:
        EnvError: there is no such module, it has no parallel environment, or the spaces of its agents cannot
            be filled up.
        ImportError: pettingzoo is missing.
    """
    import pettingzoo

    for name in (f"pettingzoo.{module}", module):
        try:
            with warnings.catch_warnings():
                # Says that there is a registry as well, which older releases do not have.
                warnings.simplefilter("ignore", DeprecationWarning)
                found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there and misses another one
            continue
        if not hasattr(found, "parallel_env"):
            raise EnvError(f"{name} has no parallel_env: its agents take turns. Choose one whose agents act at once.")
        return Parallel(found.parallel_env(**place_arguments(found.parallel_env, sf_worker, sf_index) | kwargs))
    raise unknown_member("pettingzoo", "PettingZoo module", module, _modules(pettingzoo))


def _modules(pettingzoo: Any) -> list[str]:
    """Names of the environments of PettingZoo and of the particle worlds, found without importing them."""
    folders = [(f"{family}.", f"{pettingzoo.__path__[0]}/{family}") for family in ("butterfly", "sisl")]
    if spec := importlib.util.find_spec("mpe2"):
        folders += [("mpe2.", folder) for folder in spec.submodule_search_locations or ()]
    found = [(prefix, entry.name) for prefix, folder in folders for entry in pkgutil.iter_modules([folder])]
    return [prefix + name for prefix, name in found if name.rpartition("_v")[2].isdigit()]
