"""Environments whose episodes end in an unusual way: unsaid, with lives left, or without a next move."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit, TransformReward
from sf_envs.counter import Counter


class EndsEarly(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends every episode after two steps, and says nothing of it in info."""

    def reset(self, **arguments: Any) -> Any:
        self.steps = 0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or self.steps == 2, truncated, info


class LosesLives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says that the episode goes on after every second step; the reset goes on with it."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.steps, self.is_over = 0, True

    def reset(self, **arguments: Any) -> Any:
        if self.is_over or arguments.get("seed") is not None:
            self.steps, self.is_over = 0, False
            return self.env.reset(**arguments)
        return self.env.unwrapped._observe(), {}  # type: ignore[attr-defined]

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.is_over = terminated or truncated
        if self.is_over or self.steps % 2:
            return observation, reward, terminated, truncated, info
        return observation, reward, True, False, info | {"episode_continues": True}


def raw(steps: int) -> Any:
    """The step i of an episode is worth i; `RecordEpisodeStatistics` sees that."""
    return RecordEpisodeStatistics(Counter(episode_steps=steps))


def halved(env: Any) -> Any:
    return TransformReward(env, lambda reward: float(reward) / 2)


def cut_above_statistics() -> Any:
    return TimeLimit(raw(10), 3)


def ended_above_statistics() -> Any:
    return EndsEarly(raw(10))


def shaped_above_statistics() -> Any:
    return halved(raw(4))


def lives_above_statistics() -> Any:
    return halved(LosesLives(raw(5)))


def lives_alone() -> Any:
    return LosesLives(Counter(episode_steps=5))


class OwnEpisode(Counter):
    """Has the number of the episode in info, under the name that Gymnasium's statistics have as well."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, info | {"episode": self.episode}


def numbers_its_episodes() -> Any:
    return OwnEpisode(episode_steps=4)


COUNTED = {
    cut_above_statistics: (6.0, 3),
    ended_above_statistics: (3.0, 2),
    shaped_above_statistics: (10.0, 4),
    lives_above_statistics: (15.0, 5),
    lives_alone: (15.0, 5),
    numbers_its_episodes: (10.0, 4),
}
"""Return and length of every episode of these environments."""


def as_one(make: Any, mode: str, num_envs: int) -> SyncVectorEnv:
    """Several of them as one of Gymnasium's vector environments."""
    return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode[mode])


MASKED_SPACE = spaces.Dict({"action_mask": spaces.Box(0, 1, (2,), np.float32), "seen": spaces.Box(-9, 9, (1,))})
NO_MASKS: dict[str, Any] = {
    "none legal": np.zeros(2, np.float32),
    "NaN": np.full(2, np.nan, np.float32),
    "None": None,
    "missing": ...,
}


class NoNextMove(gymnasium.Env[Any, Any]):
    """Episodes of three steps, whose end comes without a mask that anything could be drawn from.

    Args:
        odd: key of `NO_MASKS`, of the last observation.
        truncated: whether the episode is cut.
        in_info: the mask is in info and not in the observation.
        late: the number that a last observation shows; NaN where it must not be looked at.
    """

    def __init__(self, odd: str, truncated: bool = False, in_info: bool = False, late: float = 3.0) -> None:
        self.odd, self.truncated, self.in_info, self.late = odd, truncated, in_info, late
        self.observation_space = MASKED_SPACE["seen"] if in_info else MASKED_SPACE
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def seen(self) -> tuple[Any, dict[str, Any]]:
        mask = NO_MASKS[self.odd] if self.steps == 3 else np.ones(2, np.float32)
        masks = {} if mask is ... else {"action_mask": mask}
        seen = np.array([self.late if self.steps == 3 else self.steps], np.float32)
        return (seen, masks) if self.in_info else ({"seen": seen} | masks, {})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self.seen()

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, info = self.seen()
        over = self.steps == 3
        return observation, 1.0, over and not self.truncated, over and self.truncated, info


class PairWithoutNextMove:
    """The same with two agents."""

    num_agents = 2

    def __init__(self, **arguments: Any) -> None:
        self.envs = [NoNextMove(**arguments) for _ in range(2)]
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space

    def reset(self, **_: Any) -> Any:
        return tuple(map(list, zip(*(env.reset() for env in self.envs), strict=True)))

    def step(self, actions: Any) -> Any:
        return tuple(map(list, zip(*(env.step(0) for env in self.envs), strict=True)))

    def close(self) -> None:
        """Nothing to close."""


class ManyWithoutNextMove(VectorEnv[Any, Any, Any]):
    """The same many at once, one step after the other, so that their episodes end in different steps."""

    def __init__(self, num_envs: int, mode: AutoresetMode, **arguments: Any) -> None:
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": mode}
        self.envs = [NoNextMove(**arguments) for _ in range(num_envs)]
        self.single_observation_space, self.single_action_space = MASKED_SPACE, spaces.Discrete(2)
        self.over = [False] * num_envs

    def shown(self, rows: list[Any]) -> Any:
        masks = [row.get("action_mask") for row in rows]
        whole = all(isinstance(mask, np.ndarray) for mask in masks)
        return {"seen": np.stack([row["seen"] for row in rows]), "action_mask": np.stack(masks) if whole else masks}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        rows = options["reset_mask"] if options else [True] * self.num_envs
        for index, env in enumerate(self.envs):
            if rows[index]:
                env.reset()
                env.steps = 0 if options else index % 3
        return self.shown([env.seen()[0] for env in self.envs]), {}

    def step(self, actions: Any) -> Any:
        mode = self.metadata["autoreset_mode"]
        rows = []
        infos: dict[str, Any] = {}
        for index, env in enumerate(self.envs):
            if mode == AutoresetMode.NEXT_STEP and self.over[index]:
                rows.append((env.reset()[0], 0.0, False, False))
            else:
                rows.append(env.step(0)[:4])
        self.over = [row[2] or row[3] for row in rows]
        if mode == AutoresetMode.SAME_STEP:
            infos = {"final_obs": [row[0] for row in rows], "_final_obs": np.array(self.over)}
            rows = [
                (env.reset()[0], *row[1:]) if over else row
                for env, row, over in zip(self.envs, rows, self.over, strict=True)
            ]
        observations, *columns = (list(column) for column in zip(*rows, strict=True))
        return self.shown(observations), *map(np.array, columns), infos


def many_without_next_move(num_envs: int, mode: AutoresetMode, **arguments: Any) -> ManyWithoutNextMove:
    return ManyWithoutNextMove(num_envs, mode, **arguments)


class LivesUnsaid(LosesLives):
    """Ends a trajectory at each lost life as well, but says nothing of it in info, like the wrappers of CleanRL.

    A reset with a seed goes on with the game as well.
    """

    def reset(self, **arguments: Any) -> Any:
        return super().reset(**arguments if self.is_over else {})

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        info.pop("episode_continues", None)
        return *rest, info


def lives_unsaid_above_statistics() -> Any:
    return halved(LivesUnsaid(raw(5)))


class EndlessLives(Counter):
    """Loses a life in every second step and goes on after it, unless its reset has a seed. No game ever ends."""

    def __init__(self) -> None:
        super().__init__(episode_steps=0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None or self.episode < 0:
            return super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        observation, reward, _, _, _ = super().step(action)
        loses = self.steps % 2 == 0
        return observation, reward, loses, False, {"episode_continues": True} if loses else {}
