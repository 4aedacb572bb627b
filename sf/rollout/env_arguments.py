"""Environments whose arguments follow the policy that plays in them.

The policy of an episode is dealt when the environment is reset, so that `reset` sees its values as well. An argument is
an attribute of the environment with the same name, which `step` or `reset` reads. A whole number stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sf.envs.arguments import layer_with
from sf.shared.arena import Array


class WithArguments:
    """An environment of one agent that takes the values of the next policy at each reset."""

    def __init__(self, env: Any, names: Sequence[str], values: Array) -> None:
        """Wraps an environment.

        Args:
            env: of Gymnasium.
            names: of its arguments.
            values: [policies, names], which may change at any time.

        Raises:
            EnvError: the environment has no such attribute.
        """
        self._env, self._values = env, values
        self.step, self.close, self.action_space = env.step, env.close, env.action_space
        self.deal: Callable[[], Array]
        """Deals the policies of the next episode, [agents]."""
        self.dealt: Array
        """The policies of this episode."""
        self._places = [(layer_with(env, name), name) for name in names]
        self._are_whole = [type(getattr(layer, name)) is int for layer, name in self._places]

    def reset(self, **arguments: Any) -> Any:
        """Begins an episode of another policy."""
        self.dealt = self.deal()
        values = self._values[self.dealt[0]].tolist()
        for (layer, name), is_whole, value in zip(self._places, self._are_whole, values, strict=True):
            setattr(layer, name, round(value) if is_whole else value)
        return self._env.reset(**arguments)


def with_arguments(envs: list[Any], names: Sequence[str], values: Array) -> list[WithArguments]:
    """Wraps the environments of a group in place, and returns them."""
    envs[:] = [WithArguments(env, names, values) for env in envs]
    return envs
