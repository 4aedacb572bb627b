"""The policies of a group of environments, dealt to its agents whenever an episode begins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from sf.config import Config
from sf.config.pbt_space import env_arguments
from sf.envs.mapping import Mapping
from sf.envs.single_stepping import SingleAgentBatch
from sf.envs.stepping import EnvBatch
from sf.rollout.env_arguments import WithArguments, with_arguments
from sf.shared.arena import Array
from sf.shared.context import RunContext
from sf.shared.env_arguments import ENV_ARGUMENTS


class DealtPolicies:
    """The policies of the rows of a group, dealt to an environment whenever an episode begins in it."""

    def __init__(self, config: Config, context: RunContext, envs: EnvBatch, random: np.random.Generator) -> None:
        """Has policy 0 everywhere before the first deal.

        Args:
            config: of the run.
            context: of all roles.
            envs: of the group.
            random: numbers of the group.

        Raises:
            ConfigError: see `Mapping`.
        """
        topology = context.topology
        self._num_policies, self._agents_per_env, self._random = topology.num_policies, topology.agents_per_env, random
        self._mapping = Mapping(config.mapping, self._num_policies, context.info, config.self_play.self_play_mirror)
        self.policies = np.zeros(topology.rows, np.int64)
        """[rows] int64."""
        self.episodes = [0] * (topology.rows // topology.agents_per_env)
        """Episodes that each environment has begun."""
        self._with_arguments: list[WithArguments] = []
        """The environments, where their arguments follow the policies."""
        if names := env_arguments(config):
            assert isinstance(envs, SingleAgentBatch)
            envs.history = None  # a game goes on under values that are gone
            self._with_arguments = with_arguments(envs.envs, names, context.arena[ENV_ARGUMENTS])
            for env, one in enumerate(self._with_arguments):
                one.deal = partial(self._deal, env)

    def draw(self, first_rows: Sequence[int]) -> None:
        """Deals the policies to the agents of each environment that starts an episode."""
        if self._num_policies == 1:
            return
        for first in first_rows:
            env = first // self._agents_per_env
            dealt = self._with_arguments[env].dealt if self._with_arguments else self._deal(env)
            self.policies[first : first + self._agents_per_env] = dealt

    def _deal(self, env: int) -> Array:
        """The policies of the next episode of an environment."""
        dealt = self._mapping.deal(self.episodes[env], self._random)
        self.episodes[env] += 1
        return dealt
