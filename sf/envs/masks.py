"""Action masks that an environment reports in `info` instead of in its observation."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sf.errors import EnvError
from sf.spaces import ACTION_MASK, ROOT_LEAF, action_spec


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts `info["action_mask"]` into the observation, where trajectories keep it.

    The mask is one vector over all choices, or a sequence of vectors with one for each choice, as Gymnasium's own
    `MultiDiscrete.sample` takes it.
    """

    puts_mask_from_info = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        inner = env.observation_space
        self._is_dict = isinstance(inner, spaces.Dict)
        self._size = sum(action_spec(env.action_space).choices)
        leaves = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {ROOT_LEAF: inner}
        self.observation_space = spaces.Dict(leaves | {ACTION_MASK: spaces.MultiBinary(self._size)})

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> Any:
        observation, *rest, info = self.env.step(action)
        return self._with_mask(observation, info), *rest, info

    def _with_mask(self, observation: Any, info: Any) -> dict[str, Any]:
        if ACTION_MASK not in info:
            raise EnvError(
                f"info has no {ACTION_MASK!r} although it had one after the first reset, only {sorted(info)}."
            )
        mask = info[ACTION_MASK]
        parts = mask if isinstance(mask, (tuple, list)) and np.ndim(mask[0]) else [mask]
        flat = np.concatenate([np.asarray(part) != 0 for part in parts]).astype(np.int8)
        return {**(observation if self._is_dict else {ROOT_LEAF: observation}), ACTION_MASK: flat}
