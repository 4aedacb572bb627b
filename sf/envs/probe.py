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
from sf.envs.contract import check_observation, check_reset, check_step, describe
from sf.envs.source import EnvSource, with_mask
from sf.envs.step_time import StepTime, Stopwatch
from sf.errors import EnvError
from sf.spaces import ACTION_MASK, EnvInfo

NUM_STEPS = 8
SEED = 0


class FirstLook(NamedTuple):
    """What was found."""

    info: EnvInfo
    step_time: StepTime
    notes: list[str]
    """Sentences about what is no error and may be one."""


def probe(source: EnvSource) -> EnvInfo:
    """Makes the environment, plays a few random steps, closes it, and says what it is like.

    Raises:
        EnvError: it cannot be made, raises, has unsupported spaces, or returns something that does not fit them.
    """
    return probe_and_time(source, 0.0).info


def probe_and_time(source: EnvSource, seconds: float) -> FirstLook:
    """The same, playing on for about so many seconds, and how long a step takes."""
    env = source.make()
    info = describe(env, source.env_id)
    if info.num_agents < 1:
        raise EnvError(f"{info.env_id} has num_agents={info.num_agents}, expected at least 1.")
    result = _reset(env, info, seed=SEED)
    if info.num_agents == 1 and isinstance(result[1], Mapping) and ACTION_MASK in result[1]:
        env, info = _with_mask_from_info(env, info)
    random = np.random.default_rng(SEED)
    bounds = Bounds(env.observation_space)
    observations = _observations(_reset(env, info, seed=SEED), info, bounds)
    watch, end_s = Stopwatch(), time.monotonic() + seconds
    while watch.steps < NUM_STEPS or time.monotonic() < end_s:
        observations, ended = _step(env, info, random, observations, watch, bounds)
        if ended:
            with watch.running():
                result = _reset(env, info)
            observations = _observations(result, info, bounds)
    found = watch.result()
    with blamed_on(info.env_id, "close"):
        env.close()
    return FirstLook(info, found, bounds.notes(info.env_id))


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


def _observations(result: tuple[Any, Any], info: EnvInfo, bounds: Bounds) -> list[Any]:
    """What reset returned, checked."""
    observations = check_reset(result, info)
    for observation in observations:
        check_observation(observation, info)
        bounds.look(observation)
    return observations


def _step(
    env: Any, info: EnvInfo, random: np.random.Generator, before: list[Any], watch: Stopwatch, bounds: Bounds
) -> tuple[list[Any], bool]:
    """One random legal step: the observations after it, and whether it ended the episode."""
    stored = np.stack([_random_action(info, observation, random) for observation in before])
    actions = action_converter(env.action_space, "clip")(stored)
    watch.steps += 1
    with blamed_on(info.env_id, "step"), watch.running():
        result = env.step(actions[0] if info.num_agents == 1 else list(actions))
    observations, ended = check_step(result, info)
    _refuse_ignored_mask(result[4] if info.num_agents > 1 else [result[4]], info, "step")
    for observation in observations:
        check_observation(observation, info)
        bounds.look(observation)
    return observations, ended


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
