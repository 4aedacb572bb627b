"""Returns and metrics of each agent, where several share an environment.

Where what one team wins the other loses, the mean return over all agents is 0, however well they play.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sf.console import rounded
from sf.monitor.means import mean_of
from sf.shared.episodes import Episode

MOST_AGENTS = 16
"""Agents of an environment up to which each has curves and a place in a line."""


def returns_by_agent(episodes: Sequence[Episode], num_agents: int) -> dict[int, float]:
    """Agent to its mean return, of the agents with an episode among these; none for one agent or very many."""
    return {agent: mean_of(one.reward for one in own) for agent, own in _of_agents(episodes, num_agents).items()}


def scalars_by_agent(episodes: Sequence[Episode], num_agents: int) -> dict[str, float]:
    """Tags ``agents/<agent>/reward`` and ``agents/<agent>/env/<name>``: means over the episodes of each agent."""
    found: dict[str, float] = {}
    for agent, own in _of_agents(episodes, num_agents).items():
        found[f"agents/{agent}/reward"] = mean_of(one.reward for one in own)
        names = {name for one in own for name in one.metrics}
        for name in sorted(names):
            found[f"agents/{agent}/env/{name}"] = mean_of(one.metrics[name] for one in own if name in one.metrics)
    return found


def in_words(returns: Mapping[int, float]) -> str:
    """Such as ``agent 0: 1.500, agent 1: -1.500``."""
    return ", ".join(f"agent {agent}: {rounded(mean)}" for agent, mean in returns.items())


def _of_agents(episodes: Sequence[Episode], num_agents: int) -> dict[int, list[Episode]]:
    found: dict[int, list[Episode]] = {}
    if 1 < num_agents <= MOST_AGENTS:
        for episode in episodes:
            found.setdefault(episode.row % num_agents, []).append(episode)
    return dict(sorted(found.items()))
