"""The cast of an evaluation, a film or a match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sf.envs.mapping import Mapping
from sf.envs.teams import seating
from sf.policy import Policy
from sf.shared.arena import Array
from sf.spaces import ActionBounds, EnvInfo


@dataclass(frozen=True)
class Cast:
    """Policies that play together, and the agents that they play."""

    policies: Sequence[Policy]
    """By policy id; they act on stored observations and are not checked, see `CollectPolicy`."""
    action_bounds: ActionBounds = "scale"
    """How Box actions are kept in their bounds."""
    mapping: str = "by_agent"
    """The mapping of policies to agents in the training."""

    def seats(self, info: EnvInfo) -> Array:
        """The policy of each agent of an environment, [num_agents].

        A function of the user deals them as in the first episode of an environment. All other mappings but `by_team`
        give agent i the policy i modulo their number.

        Raises:
            ConfigError: the environment does not say to which teams its agents belong, or the function is not found.
        """
        if ":" in self.mapping:
            return Mapping(self.mapping, len(self.policies), info).deal(0, np.random.default_rng(0))
        seats: Array = seating(self.mapping, info) % len(self.policies)
        return seats

    def num_blocks(self, info: EnvInfo) -> int:
        """Blocks of environments in which all policies play: one where each has an agent, else one for each policy."""
        together = len(np.unique(self.seats(info))) == len(self.policies)
        return 1 if together else len(self.policies)

    def alone(self, policy_id: int) -> Cast:
        """One of the policies, which plays all agents."""
        return replace(self, policies=[self.policies[policy_id]], mapping="by_agent")
