"""PettingZoo parallel environments, ``pettingzoo/mpe2.simple_spread_v3``, as rows of agents."""

from __future__ import annotations

import importlib
from typing import Any


class Parallel:
    """A parallel environment after the multi-agent protocol; agent names become positions.

    All agents need the same spaces and end in the same step, because they share a trajectory.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents: list[str] = list(env.possible_agents)
        self.num_agents = len(self.agents)
        self.observation_space = env.observation_space(self.agents[0])
        self.action_space = env.action_space(self.agents[0])
        for agent in self.agents[1:]:
            for kind, own in (("observation", self.observation_space), ("action", self.action_space)):
                other = getattr(env, f"{kind}_space")(agent)
                if other != own:
                    raise ValueError(
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
            raise ValueError(
                f"The agents {', '.join(gone)} left before the others. All agents of an episode must end together; "
                "use supersuit.black_death_v3, which lets them stay without acting."
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
        ValueError: there is no such module, or its agents have different spaces.
        ImportError: pettingzoo is missing.
    """
    import pettingzoo  # noqa: F401  # say at once that it is missing

    for name in (f"pettingzoo.{module}", module):
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there and misses another one
            continue
        return Parallel(found.parallel_env(**kwargs))
    raise ValueError(f"There is no module pettingzoo.{module} or {module}. Name it like mpe2.simple_spread_v3.")
