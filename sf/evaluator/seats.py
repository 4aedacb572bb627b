"""Which agents of an environment play with one policy in an evaluation."""

from __future__ import annotations

import numpy as np

from sf.console import Console
from sf.envs.mapping import Mapping
from sf.envs.teams import seating
from sf.errors import ConfigError
from sf.shared.arena import Array
from sf.spaces import EnvInfo


def seats_of(mapping: str, info: EnvInfo, num_policies: int) -> Array:
    """The seat of each agent, [num_agents]: agent a plays with the policy of its seat, modulo the number of policies.

    A function of the user deals them as in the first episode of an environment. One that cannot be asked here, because
    it was written in a program that is not there, is told of, and each agent has a seat of its own.

    Args:
        mapping: of the run; all but `by_team` and functions give each agent a seat of its own.
        info: of one environment.
        num_policies: of the run.

    Raises:
        ConfigError: the environment does not say to which teams its agents belong.
    """
    if ":" not in mapping:
        return seating(mapping, info)
    try:
        return Mapping(mapping, num_policies, info).deal(0, np.random.default_rng(0))
    except ConfigError as error:
        Console().line(f"Warning: agents are dealt by their numbers, because {error}")
        return seating("by_agent", info)
