"""What an environment promises, checked on what it really returns. Every failure is an EnvError that shows both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sf.envs.blame import blamed_on
from sf.errors import EnvError
from sf.spaces import EnvInfo, LeafSpec, action_spec, observation_leaves

SINGLE_LEAF = "obs"
OLD_GYM = "Environments for gym before 0.26 need a wrapper, for example shimmy.GymV26CompatibilityV0."


def describe(env: Any, env_id: str) -> EnvInfo:
    """The facts about an environment, from its spaces and its number of agents."""
    with blamed_on(env_id, "its spaces"):
        num_agents = int(getattr(env, "num_agents", 1))
        try:
            return EnvInfo(env_id, num_agents, observation_leaves(env.observation_space), action_spec(env.action_space))
        except EnvError as error:
            raise EnvError(f"{env_id}: {error}") from error


def check_observation(observation: Any, info: EnvInfo) -> None:
    """Refuse an observation of one agent that does not fit the observation space or holds NaN or infinity."""
    leaves = info.observations
    if not isinstance(observation, Mapping):
        observation = {SINGLE_LEAF: observation}
    if observation.keys() != leaves.keys():
        raise EnvError(
            f"{info.env_id} returned an observation with the keys {sorted(observation)}, but its observation space has "
            f"{sorted(leaves)}. Return exactly those."
        )
    for name, leaf in leaves.items():
        _check_leaf(observation[name], leaf, f"{info.env_id} returned an observation {name!r}")


def _check_leaf(value: Any, leaf: LeafSpec, what: str) -> None:
    array = np.asarray(value)
    if array.shape != leaf.shape:
        raise EnvError(
            f"{what} of shape {array.shape}, but its observation space promises {leaf.shape}. "
            "Correct the space or what reset and step return."
        )
    if not _fits(array.dtype, np.dtype(leaf.dtype)):
        raise EnvError(
            f"{what} of dtype {array.dtype}, which does not fit into {leaf.dtype} as its observation space promises. "
            "Convert it in the environment."
        )
    last = leaf.start + leaf.num_categories - 1
    if leaf.num_categories and not leaf.start <= array <= last:
        raise EnvError(
            f"{what} with the value {array}, but its observation space promises {leaf.start} to {last}. "
            "Correct the space or what reset and step return."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        kind = "NaN" if np.isnan(array).any() else "infinity"
        raise EnvError(
            f"{what} that holds {kind}: {np.array2string(array, threshold=16)}. Observations must be finite."
        )


def _fits(found: np.dtype[Any], stored: np.dtype[Any]) -> bool:
    """Floats of any width and integers of any width are exchangeable; all other casts must be exact."""
    both = found.kind + stored.kind
    return both == "ff" or set(both) <= set("iu") or bool(np.can_cast(found, stored, "safe"))


def check_step(result: Any, info: EnvInfo) -> tuple[list[Any], bool]:
    """Refuse what `step` may not return.

    Returns:
        One observation per agent, not yet checked, and whether the episode has ended.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        raise EnvError(
            f"{info.env_id} returned {_outline(result)} from step, expected the tuple observation, reward, "
            f"terminated, truncated, info. {OLD_GYM}"
        )
    observations, rewards, terminated, truncated, _ = (_per_agent(part, info, "step") for part in result)
    for reward in rewards:
        _check_reward(reward, info.env_id)
    for name, flags in (("terminated", terminated), ("truncated", truncated)):
        for flag in flags:
            if np.ndim(flag) != 0 or np.asarray(flag).dtype.kind not in "bi":
                raise EnvError(f"{info.env_id} returned {name}={flag!r} from step, expected True or False.")
        if any(flags) != all(flags):
            raise EnvError(
                f"{info.env_id} returned {name}={list(flags)} from step, expected the same for all {info.num_agents} "
                "agents. An episode ends for all of them in the same step."
            )
    return list(observations), bool(any(terminated) or any(truncated))


def check_reset(result: Any, info: EnvInfo) -> list[Any]:
    """Refuse what `reset` may not return; one observation per agent, not yet checked."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvError(
            f"{info.env_id} returned {_outline(result)} from reset, expected the tuple observation, info. {OLD_GYM}"
        )
    return list(_per_agent(result[0], info, "reset"))


def _per_agent(part: Any, info: EnvInfo, call: str) -> list[Any]:
    """One entry per agent: the list of a multi-agent environment, or a list of the one thing of the only agent."""
    if info.num_agents == 1:
        return [part]
    if not isinstance(part, (list, tuple, np.ndarray)) or len(part) != info.num_agents:
        raise EnvError(
            f"{info.env_id} returned {_outline(part)} from {call}, expected a list of {info.num_agents} entries, one "
            "for each agent, in every place of the tuple."
        )
    return list(part)


def _check_reward(reward: Any, env_id: str) -> None:
    try:
        number = np.asarray(reward, dtype=np.float64)
    except (TypeError, ValueError):
        number = np.empty(0)
    if number.size != 1 or not np.isfinite(number).all():
        raise EnvError(f"{env_id} returned the reward {reward!r} from step, expected a finite number.")


def _outline(value: Any) -> str:
    kind = type(value).__name__
    return f"a {kind} of {len(value)} values" if isinstance(value, (list, tuple, dict)) else f"one {kind}"
