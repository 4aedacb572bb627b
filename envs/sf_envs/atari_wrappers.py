"""The wrappers of Atari games, rows C14 to C20 of "The 37 implementation details of PPO" (Huang et al. 2022).

From the inside out: no-op start, action repeat, life loss, fire on reset, picture, sign of the reward, frames.

After a lost life info["episode_continues"] is True. The reset plays some frames of the same game, and these can end it.
No step reports that end, so the info of that reset has info["episode_continues"] = False, and the score of the game as
info["episode"].
"""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from sf.envs.statistics import EPISODE, EPISODE_CONTINUES

Frame: TypeAlias = npt.NDArray[np.uint8]
Step: TypeAlias = tuple[Any, float, bool, bool, dict[str, Any]]
Wrapper: TypeAlias = "gymnasium.Wrapper[Any, Any, Any, Any]"

NOOP, FIRE, SECOND = 0, 1, 2


def action_meanings(env: Any) -> list[str]:
    """The names of the choices of a game."""
    meanings: list[str] = env.unwrapped.get_action_meanings()
    return meanings


def _play(env: Any, action: int, reset_arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Takes an action as part of a reset: observation and info after it, in the next game if it has ended this one."""
    observation, _, terminated, truncated, info = env.step(action)
    if not (terminated or truncated):
        return observation, info
    observation, next_info = env.reset(**reset_arguments)
    return observation, _with_end(next_info, {EPISODE_CONTINUES: False} | info)


def _with_end(info: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """`info` with the end and the score of the game that `earlier` reports, if it reports them."""
    if earlier.get(EPISODE_CONTINUES, True):
        return info
    return info | {key: earlier[key] for key in (EPISODE, EPISODE_CONTINUES) if key in earlier}


class NoopStart(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Does nothing for 1 to `noop_max` frames after a reset, so that games begin differently (C14)."""

    def __init__(self, env: Any, noop_max: int = 30) -> None:
        super().__init__(env)
        if action_meanings(env)[NOOP] != "NOOP":
            raise ValueError(f"Action 0 must be NOOP for a no-op start, found {action_meanings(env)[NOOP]}.")
        self.noop_max = noop_max

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        for _ in range(int(self.unwrapped.np_random.integers(1, self.noop_max + 1))):
            # A game that ends here has no score: no policy has acted in it.
            observation, _, terminated, truncated, info = self.env.step(NOOP)
            if terminated or truncated:
                observation, info = self.env.reset()
        return observation, info


class RepeatAction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats an action, sums the rewards, and returns the brighter pixels of the last two frames (C15).

    Consoles draw some things in every other frame only. Observations, [height, width, 3] uint8, come from the console
    of ale-py where they are needed, so the environment below need not draw each frame.
    """

    def __init__(self, env: Any, times: int = 4) -> None:
        super().__init__(env)
        self.times = times
        shape = (*self._console.getScreenDims(), 3)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self._last_two = np.zeros((2, *shape), np.uint8)

    def reset(self, **kwargs: Any) -> tuple[Frame, dict[str, Any]]:
        _, info = self.env.reset(**kwargs)
        frame = np.empty_like(self._last_two[0])
        self._console.getScreenRGB(frame)
        return frame, info

    def step(self, action: Any) -> Step:
        total = 0.0
        for index in range(self.times):
            _, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if index >= self.times - 2:
                self._console.getScreenRGB(self._last_two[index - self.times])
            if terminated or truncated:
                break
        return np.maximum(*self._last_two), total, terminated, truncated, info

    @property
    def _console(self) -> Any:
        return self.unwrapped.ale  # type: ignore[attr-defined]


class LifeLossEnds(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Reports a lost life as the end of an episode, but goes on with the same game at the next reset (C16).

    A reset with a seed begins a new game at any time.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._lives = 0
        self._game_is_over = True

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._game_is_over = terminated or truncated
        lives = self._lives_left()
        if not self._game_is_over and 0 < lives < self._lives:
            terminated, info = True, info | {EPISODE_CONTINUES: True}
        self._lives = lives
        return observation, float(reward), terminated, truncated, info

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        if self._game_is_over or kwargs.get("seed") is not None:
            observation, info = self.env.reset(**kwargs)
        else:
            observation, info = _play(self.env, NOOP, kwargs)
        self._game_is_over = False
        self._lives = self._lives_left()
        return observation, info

    def _lives_left(self) -> int:
        return int(self.unwrapped.ale.lives())  # type: ignore[attr-defined]


class FireStart(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE and then the next button after each reset, because some games wait for it (C17)."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        meanings = action_meanings(env)
        if len(meanings) < 3 or meanings[FIRE] != "FIRE":
            raise ValueError(f"Action 1 must be FIRE and another one must follow, found {meanings}.")

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        for action in (FIRE, SECOND):
            observation, after = _play(self.env, action, kwargs)
            info = _with_end(after, info)
        return observation, info


class SmallPicture(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Luminance, [size, size] uint8, by area interpolation (C18)."""

    def __init__(self, env: Any, size: int = 84) -> None:
        super().__init__(env)
        import cv2

        self._cv2, self.size = cv2, size
        self.observation_space = spaces.Box(0, 255, (size, size), np.uint8)

    def observation(self, observation: Frame) -> Frame:
        gray = self._cv2.cvtColor(observation, self._cv2.COLOR_RGB2GRAY)
        return np.asarray(self._cv2.resize(gray, (self.size, self.size), interpolation=self._cv2.INTER_AREA), np.uint8)


class SignOfReward(gymnasium.RewardWrapper[Any, Any]):
    """The reward is -1, 0 or 1 (C19)."""

    def reward(self, reward: Any) -> float:
        return float(np.sign(reward))


class LastFrames(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The last frames, [num_frames, height, width]; after a reset the first one several times (C20)."""

    def __init__(self, env: Any, num_frames: int = 4) -> None:
        super().__init__(env)
        self.num_frames = num_frames
        self.observation_space = spaces.Box(0, 255, (num_frames, *env.observation_space.shape), np.uint8)
        self._frames: Any = None

    def reset(self, **kwargs: Any) -> tuple[Frame, dict[str, Any]]:
        frame, info = self.env.reset(**kwargs)
        frames = np.repeat(frame[None], self.num_frames, axis=0)
        self._frames = frames
        return frames, info

    def step(self, action: Any) -> Step:
        frame, reward, terminated, truncated, info = self.env.step(action)
        # A new array, because the caller may keep the old one.
        self._frames = np.concatenate([self._frames[1:], frame[None]])
        return self._frames, float(reward), terminated, truncated, info
