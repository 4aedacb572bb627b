"""Which policy plays which agent of an environment in an evaluation."""

from __future__ import annotations

import numpy as np

from sf.envs.mapping import Mapping
from sf.envs.teams import seating
from sf.shared.arena import Array
from sf.spaces import EnvInfo


def seats_of(mapping: str, info: EnvInfo, num_policies: int) -> Array:
    """The policy of each agent, [num_agents].

    A function of the user deals them as in the first episode of an environment. All other mappings but `by_team` give
    agent i the policy i modulo their number.

    Args:
        mapping: of the run.
        info: of one environment.
        num_policies: of the run.

    Raises:
        ConfigError: the environment does not say to which teams its agents belong, or the function is not found.
    """
    if ":" in mapping:
        return Mapping(mapping, num_policies, info).deal(0, np.random.default_rng(0))
    seats: Array = seating(mapping, info) % num_policies
    return seats


def all_play(seats: Array, num_policies: int) -> bool:
    """Whether each policy has an agent; else they come first one after the other."""
    return len(np.unique(seats)) == num_policies
