"""A first look at an environment, before a run spends anything on it."""

from __future__ import annotations

from typing import Any

from sf.envs.blame import blamed_on
from sf.envs.contract import check_observation, check_reset, check_step, describe
from sf.envs.source import EnvSource
from sf.errors import EnvError
from sf.spaces import EnvInfo

NUM_STEPS = 8
SEED = 0


def probe(source: EnvSource) -> EnvInfo:
    """Makes the environment, plays a few random steps, closes it, and says what it is like.

    Raises:
        EnvError: it cannot be made, raises, has unsupported spaces, or returns something that does not fit them.
    """
    env = source.make()
    info = describe(env, source.env_id)
    if info.num_agents < 1:
        raise EnvError(f"{info.env_id} has num_agents={info.num_agents}, expected at least 1.")
    with blamed_on(info.env_id, "the seeding of its action space"):
        env.action_space.seed(SEED)
    _reset(env, info, seed=SEED)
    for _ in range(NUM_STEPS):
        if _step(env, info):
            _reset(env, info)
    with blamed_on(info.env_id, "close"):
        env.close()
    return info


def _reset(env: Any, info: EnvInfo, **kwargs: Any) -> None:
    with blamed_on(info.env_id, "reset"):
        result = env.reset(**kwargs)
    for observation in check_reset(result, info):
        check_observation(observation, info)


def _step(env: Any, info: EnvInfo) -> bool:
    """One random step; whether it ended the episode."""
    actions = [env.action_space.sample() for _ in range(info.num_agents)]
    with blamed_on(info.env_id, "step"):
        result = env.step(actions[0] if info.num_agents == 1 else actions)
    observations, ended = check_step(result, info)
    for observation in observations:
        check_observation(observation, info)
    return ended
