"""Agents with spaces of their own as rows of one kind: smaller observations and actions are filled up.

A vector gets zeros at its end, and a policy that acts for agents of one kind learns nothing from them. With fewer
choices than others an agent has an action mask. Numbers of an action that an agent has not are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from sf.errors import EnvError
from sf.spaces import ACTION_MASK, ROOT_LEAF


class Padding:
    """The spaces of all agents, and the way from each agent's own observations and back to its own actions."""

    def __init__(self, names: Sequence[Any], observations: Sequence[Any], actions: Sequence[Any]) -> None:
        """Finds common spaces; those that are alike stay as they are.

        Args:
            names: of the agents, for messages.
            observations: space of each agent.
            actions: space of each agent.

        Raises:
            EnvError: they differ in more than the length of vectors and the number of choices.
        """
        self._names, self._sizes, self._choices = list(names), [0] * len(names), [0] * len(names)
        self._widths, self._lengths = [0] * len(names), [0] * len(names)
        self.observation_space = observations[0] if _are_alike(observations) else self._padded(observations)
        self.action_space = actions[0] if _are_alike(actions) else self._common_actions(actions)
        self._masks = self._action_masks()
        self._has_keys = isinstance(self.observation_space, spaces.Dict)
        if self._masks:
            own = self.observation_space
            parts = dict(own.spaces) if isinstance(own, spaces.Dict) else {ROOT_LEAF: own}
            if ACTION_MASK in parts:
                raise EnvError(
                    f"The agents have different action spaces, and observations with a mask {ACTION_MASK!r} for one "
                    "of them. Give all agents the same choices with a wrapper, and mask those that they have not."
                )
            self.observation_space = spaces.Dict({**parts, ACTION_MASK: spaces.MultiBinary(len(self._masks[0]))})

    def observe(self, agent: int, observation: Any, info: Any) -> Any:
        """An observation in the common space; None, and what does not fit the space of the agent, stay as they are.

        Raises:
            EnvError: an action mask in `info` does not fit the choices of the agent.
        """
        if observation is None:
            return None
        if size := self._sizes[agent]:
            vector = np.asarray(observation)
            if vector.shape != (self._lengths[agent],) or vector.dtype != self._dtype:
                return observation  # which is refused where it is read
            observation = np.zeros(size, self._dtype)
            observation[: len(vector)] = vector
        if not self._masks:
            return observation
        parts = dict(observation) if self._has_keys else {ROOT_LEAF: observation}
        return {**parts, ACTION_MASK: self._mask(agent, info)}

    def _mask(self, agent: int, info: Any) -> Any:
        """The choices that an agent has, or those that its environment allows now."""
        allowed = info.get(ACTION_MASK) if isinstance(info, Mapping) else None
        if allowed is None:
            return self._masks[agent]
        if np.shape(allowed) != (self._choices[agent],):
            raise EnvError(
                f"info[{ACTION_MASK!r}] of {self._names[agent]} has the shape {list(np.shape(allowed))}, expected one "
                f"number for each of its {self._choices[agent]} choices."
            )
        mask = np.zeros(len(self._masks[agent]), np.int8)
        mask[: self._choices[agent]] = allowed
        return mask

    def act(self, agent: int, action: Any) -> Any:
        """An action in the space of the agent."""
        return action[: self._widths[agent]] if self._widths[agent] else action

    def _padded(self, observations: Sequence[Any]) -> Any:
        if not all(isinstance(space, spaces.Box) and len(space.shape) == 1 for space in observations):
            raise self._refused("observation", observations)
        if len({space.dtype for space in observations}) > 1:
            raise self._refused("observation", observations)
        longest = max(space.shape[0] for space in observations)
        self._dtype, self._lengths = observations[0].dtype, [space.shape[0] for space in observations]
        self._sizes = [longest if space.shape[0] < longest else 0 for space in observations]
        low, high = (
            [bound for space in observations for bound in np.pad(getattr(space, name), (0, longest - space.shape[0]))]
            for name in ("low", "high")
        )
        lows, highs = (np.array(bounds).reshape(-1, longest) for bounds in (low, high))
        return spaces.Box(lows.min(0), highs.max(0), dtype=self._dtype)

    def _common_actions(self, actions: Sequence[Any]) -> Any:
        if all(isinstance(space, spaces.Discrete) and space.start == 0 for space in actions):
            self._choices = [int(space.n) for space in actions]
            return spaces.Discrete(max(self._choices))
        longest = max(actions, key=lambda space: int(np.prod(space.shape or 1)))
        if not all(isinstance(space, spaces.Box) and len(space.shape) == 1 for space in actions) or not all(
            space.dtype == longest.dtype
            and np.array_equal(space.low, longest.low[: len(space.low)])
            and np.array_equal(space.high, longest.high[: len(space.high)])
            for space in actions
        ):
            raise self._refused("action", actions)
        self._widths = [len(space.low) if len(space.low) < len(longest.low) else 0 for space in actions]
        return longest

    def _action_masks(self) -> list[Any]:
        most = max(self._choices)
        return [(np.arange(most) < own).astype(np.int8) for own in self._choices] if most else []

    def _refused(self, kind: str, of_kind: Sequence[Any]) -> EnvError:
        other = next(index for index, space in enumerate(of_kind) if space != of_kind[0])
        return EnvError(
            f"The agents {self._names[0]} and {self._names[other]} have different {kind} spaces, {of_kind[0]} and "
            f"{of_kind[other]}. Vectors of different lengths and different numbers of choices are filled up; make "
            "these alike with a wrapper."
        )


def _are_alike(of_kind: Sequence[Any]) -> bool:
    return all(space == of_kind[0] for space in of_kind)
