"""The promises of an environment, checked on its real return values. Every failure is an EnvError that shows both."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from sf.envs.blame import blamed_on
from sf.errors import EnvError
from sf.gymnasium_spaces import action_spec, observation_leaves
from sf.shared.arena import Array
from sf.spaces import ACTION_MASK, ActionSpec, EnvInfo, LeafSpec

OLD_GYM = "Environments for gym before 0.26 need a wrapper, for example shimmy.GymV26CompatibilityV0."
FINITE_OR_DROPPED = "Correct or clip it in the environment, or drop what leads to it with --on_nonfinite=drop."
LARGEST = 1e18
"""From here on a reward or an observation counts as infinite: its square, which statistics add up, is no float32."""
SHOWN = 16
"""Numbers of an array in a message."""
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


def check_observation(observation: Any, info: EnvInfo) -> None:
    """Refuse an observation of one agent that does not fit the observation space."""
    check_keys(observation, info)
    for name, leaf in info.observations.items():
        what = f"{info.env_id} returned an observation {name!r}"
        array = leaf_array(leaf_value(observation, leaf), leaf, what)
        check_categories(array, leaf, what)
        if name == ACTION_MASK:
            check_mask(array, info.action)


def nonfinite_observation(observation: Any, info: EnvInfo) -> str:
    """The sentence about an observation, which fits otherwise, with NaN or infinity; "" without."""
    for name, leaf in info.observations.items():
        array = np.asarray(leaf_value(observation, leaf))
        if array.dtype.kind == "f" and not (np.abs(array) < np.float64(LARGEST)).all():
            kind = "NaN" if np.isnan(array).any() else "infinity"
            return (
                f"{info.env_id} returned an observation {name!r} that holds {kind}: "
                f"{with_place(array)}{counts_as_infinite(array)}. Observations must be finite."
            )
    return ""


def with_place(array: Array) -> str:
    """An array with numbers that are not finite, as text; of a long one also where they are."""
    text = np.array2string(array, threshold=SHOWN)
    places = np.argwhere(~(np.abs(array) < np.float64(LARGEST)))
    if array.size <= SHOWN or not len(places):
        return text
    first = ", ".join(map(str, places[0].tolist()))
    return f"{text} ({array[tuple(places[0])]} at [{first}]; {len(places)} of {array.size} numbers)"


def nonfinite_reward(reward: float, info: EnvInfo) -> str:
    """The same about a reward."""
    if abs(reward) < LARGEST:
        return ""
    return (
        f"{info.env_id} returned the reward {reward!r}{counts_as_infinite(reward)} from step, expected a finite number."
    )


def counts_as_infinite(values: Array | float) -> str:
    """A note on numbers that are finite but count as infinite."""
    return f" (anything from {LARGEST:g} counts as infinite)" if np.isfinite(values).all() else ""


def entries(info: EnvInfo) -> dict[tuple[str | int, ...], set[str | int]]:
    """The keys of every dict and every tuple of an observation, by where it is; empty if it is one array."""
    wanted: dict[tuple[str | int, ...], set[str | int]] = {}
    for leaf in info.observations.values():
        for depth, key in enumerate(leaf.path):
            wanted.setdefault(leaf.path[:depth], set()).add(key)
    return wanted


def check_keys(observation: Any, info: EnvInfo, kind: str = "an observation") -> None:
    """Refuse a nest with missing or additional entries."""
    for path, keys in entries(info).items():
        node = reduce(lambda part, key: part[key], path, observation)
        found = set(node) if isinstance(node, Mapping) else set(range(len(node))) if is_row(node) else None
        if found != keys:
            where = f" at {'/'.join(map(str, path))!r}" if path else ""
            shown = f"with the keys {sorted(found, key=str)}" if found is not None else f"of type {type(node).__name__}"
            raise EnvError(
                f"{info.env_id} returned {kind}{where} {shown}, but its observation space has "
                f"{sorted(keys, key=str)}. Return exactly those."
            )


def is_row(value: Any) -> bool:
    """Whether it may stand for an element of a Tuple space: a tuple, a list or an array, as Gymnasium has it."""
    return isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def leaf_value(observation: Any, leaf: LeafSpec) -> Any:
    """The part of an observation that belongs to a leaf."""
    for key in leaf.path:
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError):
            name = "/".join(map(str, leaf.path))
            raise EnvError(f"it returned an observation without the entry {name!r}: {observation!r}.") from None
    return observation


def leaf_array(value: Any, leaf: LeafSpec, what: str) -> Array:
    """The value as an array that can be stored in the leaf without losing anything but digits of float64.

    Args:
        value: returned by the environment.
        leaf: promised by its observation space.
        what: beginning of the sentence that says what is wrong.

    Raises:
        EnvError: wrong shape, or a type that does not fit. Categories are not looked at, see `check_categories`.
    """
    array = any_array(value)
    if array.shape != leaf.shape:
        raise EnvError(
            f"{what} of shape {array.shape}, but its observation space promises {leaf.shape}. "
            "Correct the space or what reset and step return."
        )
    if not _fits(array, np.dtype(leaf.dtype)):
        raise EnvError(
            f"{what} of dtype {array.dtype}, which does not fit into {leaf.dtype} as its observation space promises. "
            "Convert it in the environment."
        )
    return array


def vector_leaf_array(value: Any, leaf: LeafSpec, num_envs: int, what: str) -> Array:
    """Like `leaf_array` for the values of many environments, [num_envs, *shape]."""
    array = any_array(value)
    if array.shape != (num_envs, *leaf.shape) or not _fits(array, np.dtype(leaf.dtype)):
        raise EnvError(
            f"{what} {array.dtype}{list(array.shape)}, expected {leaf.dtype}{[num_envs, *leaf.shape]} as the single "
            "observation space promises. Correct the space or what reset and step return."
        )
    return array


def check_categories(array: Array, leaf: LeafSpec, what: str) -> None:
    """Refuse a category out of range, in an array of the shape of the leaf; `what` as for `leaf_array`."""
    places = array.reshape(-1) - leaf.starts if leaf.categories else np.zeros(0)
    if ((places < 0) | (places >= leaf.categories)).any():
        raise EnvError(
            f"{what} with the value {array}, but its observation space promises {leaf}. "
            "Correct the space or what reset and step return."
        )


def check_mask(mask: Array, action: ActionSpec) -> None:
    """Refuse a mask, [total number of choices], that holds NaN or leaves a column without a legal choice."""
    if mask.dtype.kind == "f" and np.isnan(mask).any():
        raise EnvError(f"it returned the action mask {mask.tolist()}, which holds NaN. Use 0 for what is not allowed.")
    legal = np.logical_or.reduceat(mask, first_choices(action))
    if not legal.all():
        index = int(legal.argmin())
        column = [column for column in action.columns if column.num_choices][index]
        raise EnvError(
            f"it returned the action mask {mask.tolist()}, which forbids all of action column {index} ({column}). "
            "Allow at least one."
        )


def first_choices(action: ActionSpec) -> Array:
    """Where in a mask each column begins."""
    return np.cumsum((0, *action.choices[:-1]))


def any_array(value: Any) -> Array:
    """The value as numpy sees it; an array that fits nowhere if that is none.

    Raises:
        EnvError: it has numbers that numpy may not read, such as a tensor that requires grad.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError):  # what does not convert, and lists of different lengths
        return np.array(None)
    except RuntimeError as error:
        raise EnvError(
            f"the environment returned a {type(value).__name__} that NumPy cannot read ({error}), expected numbers."
        ) from error


def _fits(array: Array, stored: np.dtype[Any]) -> bool:
    """Floats of any width are exchangeable; all other casts must be exact, for integers value by value.

    True is exactly 1.0, but an environment that returns it where a float is promised has mixed something up.
    """
    found = array.dtype
    if found.kind + stored.kind == "bf":
        return False
    if found == stored or found.kind + stored.kind == "ff" or np.can_cast(found, stored, "safe"):
        return True
    return found.kind in "iu" and stored.kind in "iu" and bool((array.astype(stored) == array).all())


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
    subject = info.env_id
    check_tuple(result, "step", subject)
    parts = (_per_agent(part, info, "step") for part in result)
    nothing: tuple[Any, ...] = (None, 0.0, False, False, {})
    observations, rewards, terminated, truncated, infos = (
        [none if agent in gone else one for agent, one in enumerate(part)]
        for part, none in zip(parts, nothing, strict=True)
    )
    return Step(
        observations,
        [number(reward, subject) for reward in rewards],
        [flag(value, "terminated", subject) for value in terminated],
        [flag(value, "truncated", subject) for value in truncated],
        infos,
    )


def check_reset(result: Any, info: EnvInfo) -> list[Any]:
    """Refuse what `reset` may not return; one observation per agent, not yet checked."""
    check_tuple(result, "reset", info.env_id)
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


def _outline(value: Any) -> str:
    kind = type(value).__name__
    return f"a {kind} of {len(value)} values" if isinstance(value, (list, tuple, dict)) else f"one {kind}"
