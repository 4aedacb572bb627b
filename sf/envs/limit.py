"""A limit on the steps of an episode, for single environments and for those with several agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from sf.envs.statistics import EPISODE_CONTINUES


def limited(env: Any, max_episode_steps: int) -> Any:
    """The environment with a limit on the steps of its episodes; a `gymnasium.Env` stays one."""
    kind = StepLimit if isinstance(env, gymnasium.Env) else AgentsStepLimit
    return kind(env, max_episode_steps)


class _Limited:
    """Truncates an episode after so many steps if it has not ended by then; passes on all other results.

    An episode goes on after an end with info["episode_continues"], so steps count across the reset that follows. The
    reset after a cut must begin a new episode, so environments that use this key get a seed in it.
    """

    env: Any

    def _begin(self, max_episode_steps: int) -> None:
        self.max_episode_steps = max_episode_steps
        self.steps = 0
        self._last: Any = None
        """Result of the last step; None after a reset."""
        self._continued = False
        """Whether an end has ever had info["episode_continues"]."""
        self._random = np.random.default_rng()

    def reset(self, **kwargs: Any) -> Any:
        if kwargs.get("seed") is not None:
            self._random = np.random.default_rng(kwargs["seed"])
        continues = self._last is not None and any(info.get(EPISODE_CONTINUES) for info in _infos(self._last, 5))
        self._continued = self._continued or continues
        is_cut = self.steps >= self.max_episode_steps
        if is_cut and self._continued and kwargs.get("seed") is None:
            kwargs["seed"] = int(self._random.integers(2**31))
        self._last = None
        result = self.env.reset(**kwargs)
        has_ended = any(not info.get(EPISODE_CONTINUES, True) for info in _infos(result, 2))  # within the reset
        if is_cut or has_ended or not continues or kwargs.get("seed") is not None:
            self.steps = 0
        return result

    def step(self, action: Any) -> Any:
        result = self._last = self.env.step(action)
        self.steps += 1
        if self.steps < self.max_episode_steps:
            return result
        self._continued = self._continued or any(info.get(EPISODE_CONTINUES) for info in _infos(result, 5))
        return _cut(result)


class StepLimit(_Limited, gymnasium.Wrapper[Any, Any, Any, Any]):
    """A limit for a `gymnasium.Env`. Other attributes are those of the environment."""

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        gymnasium.Wrapper.__init__(self, env)
        self._begin(max_episode_steps)

    def __getattr__(self, name: str) -> Any:
        return _attribute(self, name)


class AgentsStepLimit(_Limited):
    """A limit for an environment after the multi-agent protocol, which need not be a `gymnasium.Env`."""

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        self.env = env
        self._begin(max_episode_steps)

    def __getattr__(self, name: str) -> Any:
        return _attribute(self, name)


def _attribute(limit: Any, name: str) -> Any:
    """An attribute of the environment below a limit."""
    if name == "env" or name.startswith("_"):  # a limit that is just being copied has no environment yet
        raise AttributeError(f"{type(limit).__name__} has no attribute {name!r}")
    return getattr(limit.env, name)


def _infos(result: Any, length: int) -> list[Mapping[str, Any]]:
    """The infos at the end of a result of `step` or `reset`, one per agent; none if it has another form."""
    if not (isinstance(result, tuple) and len(result) == length):
        return []
    infos = result[-1] if isinstance(result[-1], (list, tuple)) else [result[-1]]
    return [info for info in infos if isinstance(info, Mapping)]


def _cut(result: Any) -> Any:
    """The result of a step as the last one of an episode; another form than that of a step is left to its checks."""
    if not (isinstance(result, tuple) and len(result) == 5):
        return result
    observation, reward, terminated, _, info = result
    if np.ndim(terminated) == 0:
        return observation, reward, terminated, True, _ending(info)
    infos = [_ending(one) for one in info] if isinstance(info, (list, tuple)) else info
    return observation, reward, terminated, [not one for one in terminated], infos


def _ending(info: Any) -> Any:
    """The info of the last step of an episode, although a life may have been lost in it."""
    if isinstance(info, Mapping) and info.get(EPISODE_CONTINUES):
        return {**info, EPISODE_CONTINUES: False}
    return info
