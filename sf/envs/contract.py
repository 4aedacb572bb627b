"""The promises of an environment, checked on its real return values. Every failure is an EnvError that shows both."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sf.envs.blame import blamed_on
from sf.envs.leaves import any_array
from sf.errors import EnvError
from sf.shared.arena import Array
from sf.spaces import ACTION_MASK, EnvInfo
from sf.spaces.from_gymnasium import action_spec, observation_leaves

OLD_GYM = "Environments for gym before 0.26 need a wrapper, for example shimmy.GymV26CompatibilityV0."
SEVERAL_REWARDS = (
    " Several agents: use --env=multiagent/ID if its spaces are Tuples or Dicts with an entry per agent, or follow the "
    'multi-agent protocol, see "Several agents" in docs/environments. Several objectives: weigh them, for example with '
    "gymnasium.wrappers.TransformReward(env, lambda reward: float(weights @ reward))."
)
BOOL = np.dtype(bool)
RETURNED = {"reset": ("observation", "info"), "step": ("observation", "reward", "terminated", "truncated", "info")}


def describe(env: Any, env_id: str, num_agents: int | None = None) -> EnvInfo:
    """The facts about an environment, from its spaces and its number of agents, if that is not known already."""
    with blamed_on(env_id, "its spaces"):
        if num_agents is None:
            num_agents = int(getattr(env, "num_agents", 1))
        try:
            leaves, action = observation_leaves(env.observation_space), action_spec(env.action_space)
            names = tuple(map(str, getattr(env, "agent_names", ()))) if num_agents > 1 else ()
            if names and len(names) != num_agents:
                raise EnvError(f"agent_names is {names}, expected a name for each of its {num_agents} agents.")
            return EnvInfo(env_id, num_agents, leaves, action, getattr(env, "puts_mask_from_info", False), names)
        except EnvError as error:
            raise EnvError(f"{env_id}: {error}") from error


def without_mask(info: EnvInfo) -> EnvInfo:
    """The spaces of final observations: the end of an episode has no next move, so no mask."""
    leaves = {name: leaf for name, leaf in info.observations.items() if name != ACTION_MASK}
    return replace(info, observations=leaves) if leaves else info


def unmasked(observation: Any) -> Any:
    """An observation without its mask, which may be missing."""
    if isinstance(observation, Mapping) and ACTION_MASK in observation:
        return {key: part for key, part in observation.items() if key != ACTION_MASK}
    return observation


def check_tuple(result: Any, call: str, subject: str = "it") -> None:
    """Refuse anything but the tuple that `reset` or `step` has to return."""
    expected = RETURNED[call]
    if not isinstance(result, tuple) or len(result) != len(expected):
        raise EnvError(
            f"{subject} returned {_outline(result)} from {call}, expected the tuple {', '.join(expected)}. {OLD_GYM}"
        )


def flag(value: Any, name: str, subject: str = "it", call: str = "step") -> bool:
    """True or False, from a bool of Python or numpy, or one of the integers 0 and 1.

    Raises:
        EnvError: it is something else, of which Python would have an opinion as well: "False" is true, and so is nan.
    """
    if value.__class__ in (bool, np.bool_):
        return bool(value)
    array = any_array(value)
    if array.ndim == 0 and array.dtype.kind in "biu" and array.item() in (0, 1):
        return bool(array)
    raise EnvError(f"{subject} returned {name}={value!r} from {call}, expected True or False.")


def vector_flags(values: Any, name: str, num_envs: int, subject: str) -> Array:
    """Like `flag` for many environments, [num_envs] bool."""
    if values.__class__ is np.ndarray and values.dtype is BOOL and values.shape == (num_envs,):
        return values
    array = any_array(values)
    is_flags = array.dtype.kind == "b" or (array.dtype.kind in "iu" and ((array == 0) | (array == 1)).all())
    if array.shape != (num_envs,) or not is_flags:
        raise EnvError(
            f"{subject} returned {name} {array.dtype}{list(array.shape)} from step, {array}, expected True or False "
            f"for each of {num_envs} environments."
        )
    return array.astype(bool, copy=False)


def number(reward: Any, subject: str = "it") -> float:
    """The number that a reward is, also as an array that holds only one, which the environment may use again.

    Raises:
        EnvError: it is no number.
    """
    if isinstance(reward, (float, int, np.floating, np.integer, np.bool_)):
        try:
            return float(reward)
        except OverflowError:
            pass  # an integer of hundreds of digits
    array = any_array(reward)
    if array.size != 1 or array.dtype.kind not in "fiub":
        are_several = (array.size > 1 and array.dtype.kind in "fiub") or isinstance(reward, Mapping)
        several = SEVERAL_REWARDS if are_several else ""
        raise EnvError(f"{subject} returned the reward {reward!r} from step, expected a finite number.{several}")
    return float(array.item())


def is_nonzero(reward: Any) -> bool:
    """Whether it is a number other than 0."""
    if reward.__class__ is float:
        return bool(reward != 0.0)
    array = any_array(reward)
    return array.size == 1 and array.dtype.kind in "fiub" and array.item() != 0


PLACES = "observations", "rewards", "flags terminated", "flags truncated", "infos"
"""What the tuple that `step` returns holds, in its order."""


class Step(NamedTuple):
    """The return values of a step, one entry per agent."""

    observations: list[Any]
    """Not yet checked."""
    rewards: list[float]
    terminated: list[bool]
    truncated: list[bool]
    infos: list[Any]


def check_step(result: Any, info: EnvInfo, gone: Collection[int] = ()) -> Step:
    """Refuse what `step` may not return.

    Args:
        result: the return value of `step`.
        info: of the environment.
        gone: agents that are not there; their values read as None, 0 and False.
    """
    check_tuple(result, "step", info.env_id)
    parts = (_per_agent(part, info, f"step as its {what}") for part, what in zip(result, PLACES, strict=True))
    nothing: tuple[Any, ...] = (None, 0.0, False, False, {})
    observations, rewards, terminated, truncated, infos = (
        [none if agent in gone else one for agent, one in enumerate(part)]
        for part, none in zip(parts, nothing, strict=True)
    )
    subjects = [f"{info.env_id}{', ' if info.num_agents > 1 else ''}{info.agent(row)}" for row in range(len(rewards))]
    return Step(
        observations,
        [*map(number, rewards, subjects)],
        [flag(value, "terminated", subject) for value, subject in zip(terminated, subjects, strict=True)],
        [flag(value, "truncated", subject) for value, subject in zip(truncated, subjects, strict=True)],
        infos,
    )


def check_reset(result: Any, info: EnvInfo) -> list[Any]:
    """Refuse what `reset` may not return; one observation per agent, not yet checked."""
    check_tuple(result, "reset", info.env_id)
    return list(_per_agent(result[0], info, "reset as its observations"))


def _per_agent(part: Any, info: EnvInfo, call: str) -> list[Any]:
    """One entry per agent: the list of a multi-agent environment, or a list of the one thing of the only agent."""
    if info.num_agents == 1:
        return [part]
    if not isinstance(part, (list, tuple, np.ndarray)) or len(part) != info.num_agents:
        raise EnvError(
            f"{info.env_id} returned {_outline(part)} from {call}, expected a list of {info.num_agents} entries, one "
            "for each agent."
        )
    return list(part)


def _outline(value: Any) -> str:
    kind = type(value).__name__
    return f"a {kind} of {len(value)} values" if isinstance(value, (list, tuple, dict)) else f"one {kind}"
