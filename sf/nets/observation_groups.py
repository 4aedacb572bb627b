"""What each network of a policy reads: one group of leaves for the actions, and one for the values.

    leaves of the observation ──► prepared once ──┬──► group of the policy ──► encoder ──► actions
                                                  └──► group of the critic ──► its encoder ──► values

A leaf in both groups has one set of running statistics. Acting without values reads the first group alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from sf.config import ModelConfig
from sf.config.observation_groups import critic_model, key_problems, read_by_critic, read_by_policy
from sf.errors import ConfigError
from sf.nets.inputs import Inputs
from sf.spaces import EnvInfo

Encode = Callable[[dict[str, Tensor]], Tensor]
Shapes = dict[str, tuple[int, ...]]


class ObservationGroups:
    """The two groups of leaves by name, and the leaves of both in the order of the observation."""

    def __init__(self, info: EnvInfo, config: ModelConfig) -> None:
        """Looks the keys up.

        Raises:
            ConfigError: the observation does not have a key.
        """
        if problems := key_problems(config, info):
            raise ConfigError(problems)
        self.policy, self.critic = tuple(read_by_policy(config, info)), tuple(read_by_critic(config, info))
        read = {*self.policy, *self.critic}
        self.leaves = {name: leaf for name, leaf in info.observations.items() if name in read}
        self.critic_model = critic_model(config)
        self.differ = self.policy != self.critic

    def policy_shapes(self, inputs: Inputs) -> Shapes:
        """Shapes of the prepared leaves that the policy reads."""
        return {name: inputs.shapes[name] for name in self.policy}

    def critic_shapes(self, inputs: Inputs) -> Shapes:
        """Shapes of the prepared leaves that the critic reads."""
        return {name: inputs.shapes[name] for name in self.critic}

    def reader_for_policy(self, inputs: Inputs) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """Prepares the leaves of the policy alone; the others need not be there."""
        return inputs.forward if not self.differ else inputs.reader(self.policy)

    def reader_for_critic(self, inputs: Inputs) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """Prepares the leaves of the critic alone."""
        return inputs.forward if not self.differ else inputs.reader(self.critic)

    def of_policy(self, encode: Encode) -> Encode:
        """The encoder of the policy as a function of all prepared leaves."""
        return _narrowed(encode, self.policy) if self.differ else encode

    def of_critic(self, encode: Encode) -> Encode:
        """The encoder of the critic as a function of all prepared leaves."""
        return _narrowed(encode, self.critic) if self.differ else encode


def _narrowed(encode: Encode, names: tuple[str, ...]) -> Encode:
    return lambda inputs: encode({name: inputs[name] for name in names})
