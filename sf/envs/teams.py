"""The teams of the agents of an environment, by their names."""

from __future__ import annotations

import re

import numpy as np

from sf.errors import ConfigError
from sf.shared.arena import Array
from sf.spaces import EnvInfo

BY_TEAM = "by_team"
"""The mapping that gives each team a policy."""
NAME = re.compile(r"(.+?)_?\d+")
"""The name of an agent: that of its team, and its number in it, as in PettingZoo."""


def seating(mapping: str, info: EnvInfo) -> Array:
    """The seat of each agent, [num_agents]: that of its team with `by_team`, else one of its own.

    Agent a plays with the policy of its seat, modulo the number of policies.

    Raises:
        ConfigError: the environment does not say to which teams its agents belong.
    """
    return np.array(_teams(info)) if mapping == BY_TEAM else np.arange(info.num_agents)


def _teams(info: EnvInfo) -> list[int]:
    """The number of the team of each agent, in the order in which their names come up."""
    found = [NAME.fullmatch(name) for name in info.agent_names]
    if not found or None in found:
        named = f"names its agents {', '.join(info.agent_names)}" if info.agent_names else "has no names for its agents"
        raise ConfigError(
            [
                f"policy_mapping=by_team: {info.env_id} {named}, expected names like red_0, red_1 and blue_0. Give it "
                "agent_names, one for each agent, or use --policy_mapping=by_agent or module:function."
            ]
        )
    names = [match[1] for match in found if match is not None]
    order = list(dict.fromkeys(names))
    return [order.index(name) for name in names]
