"""Environments whose arguments follow the policy that plays in them.

The policy of an episode is dealt when the environment is reset, so that `reset` sees its values as well. An argument is
an attribute of the environment with the same name, which `step` or `reset` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sf.errors import EnvError
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
        self._env, self._names, self._values = env, names, values
        self.step, self.close, self.action_space = env.step, env.close, env.action_space
        self.deal: Callable[[], Array]
        """Deals the policies of the next episode, [agents]."""
        self.dealt: Array
        """The policies of this episode."""
        has = getattr(env, "has_wrapper_attr", lambda name: hasattr(env, name))
        for name in names:
            if not has(name):
                raise EnvError(
                    f"pbt_space names env.{name}, but the environment has no attribute {name}. Keep the argument under "
                    "this name, where step or reset reads it."
                )

    def reset(self, **arguments: Any) -> Any:
        """Begins an episode of another policy."""
        self.dealt = self.deal()
        for name, value in zip(self._names, self._values[self.dealt[0]].tolist(), strict=True):
            self._env.set_wrapper_attr(name, value)
        return self._env.reset(**arguments)


def with_arguments(envs: list[Any], names: Sequence[str], values: Array) -> list[WithArguments]:
    """Wraps the environments of a group in place, and returns them."""
    envs[:] = [WithArguments(env, names, values) for env in envs]
    return envs
