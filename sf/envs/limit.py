"""A limit on the steps of an episode, for single environments and for those with several agents."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class StepLimit(gymnasium.Env[Any, Any]):
    """Truncates an episode after so many steps, where it has not ended by then; everything else is passed on."""

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        self.env, self.max_episode_steps = env, max_episode_steps
        self.steps = 0
        for name in ("metadata", "render_mode", "spec"):  # which the class has as well
            if hasattr(env, name):
                setattr(self, name, getattr(env, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["env"], name)

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return getattr(self.env, "unwrapped", self.env)

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.steps += 1
        return result if self.steps < self.max_episode_steps else _cut(result)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def _cut(result: Any) -> Any:
    """What a step returned, as the last one of an episode; left to the checks of contracts if it is something else."""
    if not (isinstance(result, tuple) and len(result) == 5):
        return result
    observation, reward, terminated, _, info = result
    if np.ndim(terminated) == 0:
        return observation, reward, terminated, True, info
    return observation, reward, terminated, [not one for one in terminated], info
