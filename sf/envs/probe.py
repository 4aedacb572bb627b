"""A first look at an environment, before a run spends anything on it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sf.arena import Array
from sf.envs.actions import action_converter
from sf.envs.blame import blamed_on
from sf.envs.bounds import Bounds
from sf.envs.contract import check_finite, check_observation, check_reset, check_step, describe
from sf.envs.source import EnvSource, with_mask
from sf.envs.step_time import StepTime, Stopwatch
from sf.errors import EnvCrashed, EnvError
from sf.spaces import ACTION_MASK, EnvInfo

NUM_STEPS = 8
"""That an environment has to play without raising anything; later on, a copy of it may do better."""
SEED = 0


class FirstLook(NamedTuple):
    """What was found."""

    info: EnvInfo
    step_time: StepTime
    notes: list[str]
    """Sentences about what is no error and may be one."""
    made_in_s: float
    """How long the constructor took, with the imports, but without the time in which others had the core."""


def probe(source: EnvSource) -> EnvInfo:
    """Makes the environment, plays a few random steps, closes it, and says what it is like.

    Raises:
        EnvError: it cannot be made, raises, has unsupported spaces, or returns something that does not fit them.
    """
    return probe_and_time(source, 0.0).info


def probe_and_time(source: EnvSource, seconds: float, drop_nonfinite: bool = False) -> FirstLook:
    """The same, playing on for about so many seconds, and how long a step takes.

    Args:
        source: of the environment.
        seconds: if it raises an exception of its own in this time, the look is over.
        drop_nonfinite: what a step returns may be non-finite.
    """
    making = Stopwatch()
    making.steps = 1
    with making.running():
        env = source.make()
    info = describe(env, source.env_id)
    if info.num_agents < 1:
        raise EnvError(f"{info.env_id} has num_agents={info.num_agents}, expected at least 1.")
    result = _reset(env, info, seed=SEED)
    if info.num_agents == 1 and isinstance(result[1], Mapping) and ACTION_MASK in result[1]:
        env, info = _with_mask_from_info(env, info)
    player, notes = _Player(env, info, drop_nonfinite), []
    for _ in range(NUM_STEPS):
        player.step()
    end_s = time.monotonic() + seconds
    try:
        while time.monotonic() < end_s:
            player.step()
    except EnvCrashed as crash:
        when = f"in step {player.watch.steps} of the first look"
        notes = [f"Warning: {when}, {crash}\nRollout workers that this happens to are replaced (--max_restarts)."]
    else:
        with blamed_on(info.env_id, "close"):
            env.close()
    return FirstLook(info, player.watch.result(), player.bounds.notes(info.env_id) + notes, making.result().wall_s)


class _Player:
    """Plays random legal actions, and looks at everything that the environment returns."""

    def __init__(self, env: Any, info: EnvInfo, drop_nonfinite: bool) -> None:
        """Begins an episode.

        Args:
            env: the environment.
            info: what it promises.
            drop_nonfinite: what a step returns may be non-finite.
        """
        self.env, self.info, self.drop_nonfinite = env, info, drop_nonfinite
        self.random, self.watch, self.bounds = np.random.default_rng(SEED), Stopwatch(), Bounds(env.observation_space)
        self.observations = self._first_of_episode(_reset(env, info, seed=SEED))

    def step(self) -> None:
        """One step, and a reset where the episode is over."""
        env, info = self.env, self.info
        stored = np.stack([_random_action(info, observation, self.random) for observation in self.observations])
        actions = action_converter(env.action_space, "clip")(stored)
        self.watch.steps += 1
        with blamed_on(info.env_id, "step"), self.watch.running():
            result = env.step(actions[0] if info.num_agents == 1 else list(actions))
        observations, rewards, is_over = check_step(result, info)
        for reward in rewards:
            if not (self.drop_nonfinite or np.isfinite(reward)):
                raise EnvError(
                    f"{info.env_id} returned the reward {reward!r} from step, expected a finite number. Correct or "
                    "clip it in the environment, or drop what leads to it with --on_nonfinite=drop."
                )
        _refuse_ignored_mask(result[4] if info.num_agents > 1 else [result[4]], info, "step")
        self.observations = self._checked(observations, self.drop_nonfinite)
        if is_over:
            with self.watch.running():
                result = _reset(env, info)
            self.observations = self._first_of_episode(result)

    def _first_of_episode(self, result: tuple[Any, Any]) -> list[Any]:
        return self._checked(check_reset(result, self.info), may_be_nonfinite=False)

    def _checked(self, observations: list[Any], may_be_nonfinite: bool) -> list[Any]:
        for observation in observations:
            check_observation(observation, self.info)
            if not may_be_nonfinite:
                check_finite(observation, self.info)
            self.bounds.look(observation)
        return observations


def _with_mask_from_info(env: Any, info: EnvInfo) -> tuple[Any, EnvInfo]:
    """The environment with its mask as part of the observation."""
    if ACTION_MASK in info.observations:
        return env, info
    masked = with_mask(env)
    return masked, describe(masked, info.env_id)


def _reset(env: Any, info: EnvInfo, **kwargs: Any) -> tuple[Any, Any]:
    with blamed_on(info.env_id, "reset"):
        result: tuple[Any, Any] = env.reset(**kwargs)
    check_reset(result, info)
    if info.num_agents > 1:
        _refuse_ignored_mask(result[1], info, "reset")
    return result


def _refuse_ignored_mask(infos: Any, info: EnvInfo, call: str) -> None:
    """Refuse a mask where nobody looks for it, because illegal actions would reach the environment."""
    has_mask = isinstance(infos, (list, tuple)) and any(
        isinstance(one, Mapping) and ACTION_MASK in one for one in infos
    )
    if ACTION_MASK in info.observations or not has_mask:
        return
    if info.num_agents == 1:
        raise EnvError(
            f"{info.env_id} returned info[{ACTION_MASK!r}] from step but not from reset. Return it from both, because "
            "the first action needs a mask as well."
        )
    raise EnvError(
        f"{info.env_id} returned info[{ACTION_MASK!r}] from {call}, which is read where there is one agent; it has "
        f"{info.num_agents}. Put the mask of each agent into its observation, a Dict with the entry {ACTION_MASK!r}."
    )


def _random_action(info: EnvInfo, observation: Any, random: np.random.Generator) -> Array:
    """A stored action that the mask, if there is one, allows."""
    spec, numbers, first = info.action, [], 0
    mask = np.asarray(observation[ACTION_MASK]) if ACTION_MASK in info.observations else None
    for column in spec.columns:
        if column.num_choices:
            legal = np.arange(column.num_choices)
            if mask is not None:
                legal = np.flatnonzero(mask[first : first + column.num_choices])
            first += column.num_choices
            numbers.append(random.choice(legal))
        else:
            numbers.append(random.standard_normal())
    return np.array(numbers, spec.dtype).reshape(spec.shape)
