"""PettingZoo parallel environments, ``pettingzoo/mpe2.simple_spread_v3``, as rows of agents."""

from __future__ import annotations

import importlib.util
import pkgutil
import warnings
from typing import Any

from sf.errors import EnvError
from sf_envs.members import unknown_member


class Parallel:
    """A parallel environment after the multi-agent protocol; agent names become positions.

    All agents need the same spaces and end in the same step, because they share a trajectory.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents: list[str] = list(env.possible_agents)
        self.num_agents = len(self.agents)
        if self.num_agents < 2:
            raise EnvError(f"{env} has the agents {self.agents}, expected at least 2 of them.")
        self.observation_space = env.observation_space(self.agents[0])
        self.action_space = env.action_space(self.agents[0])
        for agent in self.agents[1:]:
            for kind, own in (("observation", self.observation_space), ("action", self.action_space)):
                other = getattr(env, f"{kind}_space")(agent)
                if other != own:
                    raise EnvError(
                        f"The agents {self.agents[0]} and {agent} have different {kind} spaces, {own} and {other}. "
                        "Make them alike, for example with supersuit.pad_observations_v0 and pad_action_space_v0."
                    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Any], list[Any]]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return [observations[agent] for agent in self.agents], [infos.get(agent, {}) for agent in self.agents]

    def step(self, actions: list[Any]) -> tuple[list[Any], list[float], list[bool], list[bool], list[Any]]:
        observations, rewards, terminated, _, infos = self.env.step(dict(zip(self.agents, actions, strict=True)))
        if self.env.agents and len(self.env.agents) < self.num_agents:
            gone = sorted(set(self.agents) - set(self.env.agents))
            raise EnvError(
                f"{', '.join(gone)} left before {', '.join(self.env.agents)}. All agents of an episode must end "
                "together; use supersuit.black_death_v3, which lets them stay without acting."
            )
        over = not self.env.agents
        ended = [over and bool(terminated[agent]) for agent in self.agents]
        cut = over and not all(ended)
        return (
            [observations[agent] for agent in self.agents],
            [float(rewards[agent]) for agent in self.agents],
            [False] * self.num_agents if cut else ended,
            [cut] * self.num_agents,
            [infos.get(agent, {}) for agent in self.agents],
        )

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def make(module: str, **kwargs: Any) -> Parallel:
    """A parallel environment.

    Args:
        module: that has the function parallel_env, below pettingzoo (``sisl.multiwalker_v9``) or anywhere
            (``mpe2.simple_spread_v3``).
        kwargs: of that function.

    Raises:
        EnvError: there is no such module, it has no parallel environment, or its agents have different spaces.
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
        return Parallel(found.parallel_env(**kwargs))
    raise unknown_member("pettingzoo", "PettingZoo module", module, _modules(pettingzoo))


def _modules(pettingzoo: Any) -> list[str]:
    """Names of the environments of PettingZoo and of the particle worlds, found without importing them."""
    folders = [(f"{family}.", f"{pettingzoo.__path__[0]}/{family}") for family in ("butterfly", "sisl")]
    if spec := importlib.util.find_spec("mpe2"):
        folders += [("mpe2.", folder) for folder in spec.submodule_search_locations or ()]
    found = [(prefix, entry.name) for prefix, folder in folders for entry in pkgutil.iter_modules([folder])]
    return [prefix + name for prefix, name in found if name.rpartition("_v")[2].isdigit()]
