"""Action masks that an environment reports in `info`, or by a method, instead of in its observation."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sf.errors import EnvError
from sf.shared.arena import Array
from sf.spaces import ACTION_MASK, ROOT_LEAF
from sf.spaces.from_gymnasium import action_spec

METHOD = "action_masks"
LONGEST_SHOWN = 200
"""Characters of a mask in a message."""


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts `info["action_mask"]` into the observation, where trajectories keep it and policies read it.

    Where `info` has none, it is what the method `action_masks()` of the environment returns, as sb3-contrib has it.

    A run does so by itself, and its policy needs the same around an environment that it plays elsewhere. The
    observation becomes a Dict with the entries `obs` (a Dict keeps its own) and `action_mask`, int8[total number of
    choices]. In the last observation of an episode everything is allowed.

    The mask is one vector over all choices, or a sequence of vectors with one for each choice, as Gymnasium's own
    `MultiDiscrete.sample` takes it.
    """

    puts_mask_from_info = True

    def __init__(self, env: Any) -> None:
        """Wraps the environment.

        Raises:
            EnvError: it is no `gymnasium.Env`, or its actions have no choices.
        """
        self._choices = action_spec(env.action_space).choices
        if not self._choices or not isinstance(env, gymnasium.Env):
            reason = (
                f"{type(env).__name__} is no gymnasium.Env; derive it from that class, or put the mask into a Dict "
                f"observation under the key {ACTION_MASK!r}"
                if self._choices
                else f"the actions {env.action_space} have no choices; leave it out"
            )
            raise EnvError(f"info has {ACTION_MASK!r}, but {reason}.")
        super().__init__(env)
        self._ask = method_of(env)
        inner = env.observation_space
        self._is_dict = isinstance(inner, spaces.Dict)
        leaves = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {ROOT_LEAF: inner}
        self.observation_space = spaces.Dict(leaves | {ACTION_MASK: spaces.MultiBinary(sum(self._choices))})

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        return self._with(observation, self._mask(info)), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        # The end of an episode has no next move, so an environment may report any mask there, or none.
        is_over = (terminated is not False or truncated is not False) and np.any([terminated, truncated])
        mask = np.ones(sum(self._choices), np.int8) if is_over else self._mask(info)
        return self._with(observation, mask), reward, terminated, truncated, info

    def _with(self, observation: Any, mask: Array) -> dict[str, Any]:
        return {**(observation if self._is_dict else {ROOT_LEAF: observation}), ACTION_MASK: mask}

    def _mask(self, info: Any) -> Array:
        if ACTION_MASK not in info and self._ask is not None:
            mask = self._ask()
            everything = np.ones(sum(self._choices), np.int8)
            return everything if mask is None else flat_mask(mask, self._choices, f"{METHOD}()")
        if ACTION_MASK not in info:
            raise EnvError(
                f"info has no {ACTION_MASK!r} although it had one after the first reset, only {sorted(info, key=str)}."
            )
        return flat_mask(info[ACTION_MASK], self._choices)


def method_of(env: Any) -> Callable[[], Any] | None:
    """The method of a Gymnasium environment that returns its mask, if it has one and its actions have choices.

    It takes no arguments; None means that everything is allowed.
    """
    if not isinstance(env, gymnasium.Env) or not env.has_wrapper_attr(METHOD):
        return None
    method = env.get_wrapper_attr(METHOD)
    try:
        inspect.signature(method).bind()
    except (TypeError, ValueError):  # no function, or one that wants to know more
        return None
    return method if action_spec(env.action_space).choices else None


def flat_mask(mask: Any, choices: Sequence[int], where: str = f"info[{ACTION_MASK!r}]") -> Array:
    """int8[total number of choices] of a mask as `info` has it, 0 for what is not allowed.

    Args:
        mask: one vector, or a tuple or list of them.
        choices: number of choices of each column.
        where: it comes from, for messages.

    Raises:
        EnvError: it is something else.
    """
    is_split = isinstance(mask, (tuple, list)) and any(isinstance(part, (tuple, list, np.ndarray)) for part in mask)
    vectors = [_vector(part) for part in (mask if is_split else [mask])]
    expected = list(choices) if is_split else [sum(choices)]
    if [len(vector) for vector in vectors] != expected:
        raise EnvError(
            f"{where} is {textwrap.shorten(repr(mask), LONGEST_SHOWN)}, expected a vector of "
            f"{sum(choices)} numbers, 0 for what is not allowed, or one vector for each column, of the lengths "
            f"{list(choices)}."
        )
    return np.concatenate(vectors)


def _vector(part: Any) -> Array:
    """Zeros and ones; none of them if the part is no vector of numbers."""
    try:
        array = np.asarray(part)
    except ValueError:  # lists of different lengths
        array = np.empty(0)
    if array.ndim != 1 or array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and np.isnan(array).any()):
        array = np.empty(0)
    allowed: Array = (array != 0).astype(np.int8)
    return allowed
