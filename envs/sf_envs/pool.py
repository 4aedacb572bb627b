"""EnvPool environments, ``envpool/Pong-v5``, one at a time behind Gymnasium's interface."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np

from sf.envs.statistics import EPISODE, EPISODE_CONTINUES
from sf_envs.members import unknown_member


class Single(gymnasium.Env[Any, Any]):
    """The one environment of a pool of size one. Raw scores of whole games come in info["episode"]."""

    is_repeatable = False  # because every reset with another seed makes a new pool, of Atari games in 0.2 s

    def __init__(self, name: str, **kwargs: Any) -> None:
        self._name, self._kwargs = name, kwargs
        self._pool = _make_pool(name, 0, kwargs)
        self._fresh_seed: int | None = 0
        """That the pool was made with, until it is first reset."""
        self.observation_space, self.action_space = self._pool.observation_space, self._pool.action_space
        self._score, self._length = 0.0, 0
        self._game_goes_on = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None and seed != self._fresh_seed:  # a pool takes its seed when it is made
            self._pool.close()
            self._pool = _make_pool(self._name, seed, self._kwargs)
        elif self._game_goes_on:
            # After a lost life the step of a pool goes on with the game, for any action; its reset would not.
            action = np.zeros((1, *(self.action_space.shape or ())), self.action_space.dtype)
            self._game_goes_on = False
            return self._pool.step(action)[0][0], {}
        self._score, self._length, self._game_goes_on, self._fresh_seed = 0.0, 0, False, None
        return self._pool.reset()[0][0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        batch = np.expand_dims(np.asarray(action, self.action_space.dtype), 0)
        observation, reward, terminated, truncated, found = self._pool.step(batch)
        # Atari pools may clip rewards and end episodes at the loss of a life, but they tell the raw facts as well.
        self._score += float(found.get("reward", reward)[0])
        self._length += 1
        info: dict[str, Any] = {}
        if terminated[0] or truncated[0]:
            self._game_goes_on = not (truncated[0] or found.get("terminated", terminated)[0])
            if self._game_goes_on:
                info[EPISODE_CONTINUES] = True
            else:
                info[EPISODE] = {"r": self._score, "l": self._length}
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def close(self) -> None:
        self._pool.close()


def _make_pool(name: str, seed: int, kwargs: dict[str, Any], num_envs: int = 1) -> Any:
    import envpool

    if name not in envpool.list_all_envs():
        raise unknown_member("envpool", "EnvPool environment", name, envpool.list_all_envs())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # bounds of float64 in a space of float32
        pool = envpool.make_gymnasium(name, num_envs=num_envs, seed=seed, **kwargs)
        assert pool.observation_space is not None  # made when it is first looked at
        return pool


def make(name: str, max_episode_steps: int | None = None, **kwargs: Any) -> Single:
    """An environment of EnvPool, with its own limit of steps if that is lower.

    `kwargs` are those of `envpool.make_gymnasium`.

    Raises:
        EnvError: there is no such environment.
        ImportError: envpool is missing.
    """
    import envpool  # noqa: F401  # say at once that it is missing

    return Single(name, **kwargs, **_limit(name, max_episode_steps))


class Pool(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Many environments of one pool; an environment that has ended is reset by the next step.

    Raw scores of whole games come in info["episode"], in the form of Gymnasium's RecordEpisodeStatistics.
    """

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, name: str, num_envs: int, seed: int, **kwargs: Any) -> None:
        self._name, self._kwargs = name, kwargs
        self._pool = _make_pool(name, seed, kwargs, num_envs)
        self._fresh_seed: int | None = seed
        self.num_envs = num_envs
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._scores, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._is_over = np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None and seed != self._fresh_seed:
            self._pool.close()
            self._pool = _make_pool(self._name, seed, self._kwargs, self.num_envs)
        self._fresh_seed = None
        self._scores[:] = self._lengths[:] = 0
        self._is_over[:] = False
        return self._pool.reset()[0], {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, found = self._pool.step(
            np.asarray(actions, self.action_space.dtype)
        )
        # Atari pools may clip rewards and end episodes at the loss of a life, but they tell the raw facts as well.
        resets = self._is_over
        self._scores += np.where(resets, 0.0, found.get("reward", reward))
        self._lengths += ~resets
        self._is_over = terminated | truncated
        ends_game = self._is_over & (truncated | np.asarray(found.get("terminated", terminated), bool))
        infos: dict[str, Any] = {}
        if self._is_over.any():
            infos[EPISODE_CONTINUES] = self._is_over & ~ends_game
        if ends_game.any():
            infos |= {EPISODE: {"r": self._scores.copy(), "l": self._lengths.copy()}, f"_{EPISODE}": ends_game}
            self._scores[ends_game] = self._lengths[ends_game] = 0
        return observation, reward, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()


def make_vector(name: str, num_envs: int, seed: int = 0, max_episode_steps: int | None = None, **kwargs: Any) -> Pool:
    """Many environments of a pool, with its own limit of steps if that is lower.

    The name may lack its version, as in ``HalfCheetah``.
    """
    name = _with_version(name)
    return Pool(name, num_envs, seed, **kwargs, **_limit(name, max_episode_steps))


def _limit(name: str, max_episode_steps: int | None) -> dict[str, int]:
    """The argument of a pool that limits the steps of its episodes."""
    if max_episode_steps is None:
        return {}
    import envpool

    own = envpool.make_spec(name).config.max_episode_steps if name in envpool.list_all_envs() else max_episode_steps
    return {"max_episode_steps": min(max_episode_steps, own)}


def _with_version(name: str) -> str:
    """The oldest version that the pools have of a name without one."""
    import envpool

    known = [known for known in envpool.list_all_envs() if known.rpartition("-v")[0] == name]
    return min(known, key=lambda one: int(one.rpartition("-v")[2])) if known else name
