"""Gymnasium spaces as flat leaves: the facts about an environment that every process needs.

An observation is a dict of arrays, one per leaf; an observation space that is not a Dict has the one leaf ``"obs"``.
The facts are plain numbers and texts, so that they travel to spawned processes and into checkpoints without Gymnasium.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sf.errors import EnvError

if TYPE_CHECKING:
    import gymnasium

# The type in which observations of each type are stored, one that torch can compute with. Only float64 loses digits.
STORED_DTYPES = {
    "float16": "float32",
    "float32": "float32",
    "float64": "float32",
    "bool": "uint8",
    "uint8": "uint8",
    "uint16": "int32",
    "uint32": "int64",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
}


@dataclass(frozen=True)
class LeafSpec:
    """One array of an observation."""

    shape: tuple[int, ...]
    dtype: str
    """Name of the numpy type in which the leaf is stored."""
    num_categories: int = 0
    """Number of categories of a Discrete leaf, 0 for a Box."""
    start: int = 0
    """What the environment calls the first category of a Discrete leaf; it is stored as it comes."""

    def __str__(self) -> str:
        """For messages."""
        if self.num_categories:
            return f"categories {self.start} to {self.start + self.num_categories - 1}"
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class ActionSpec:
    """The actions of one agent."""

    kind: Literal["discrete", "box"]
    shape: tuple[int, ...]
    """``()`` for discrete actions, ``(d,)`` for a box."""
    dtype: Literal["int64", "float32"]
    num_actions: int = 0
    """Number of choices of a discrete action, 0 for a box."""
    start: int = 0
    """What the environment calls the first choice; stored actions count from 0."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """Bounds of a box, infinite where there is none."""

    def __str__(self) -> str:
        """For messages."""
        if self.kind == "discrete":
            return f"choices {self.start} to {self.start + self.num_actions - 1}"
        return f"{self.dtype}{list(self.shape)} from {list(self.low)} to {list(self.high)}"


@dataclass(frozen=True)
class EnvInfo:
    """What the processes need to know of an environment before one of them makes it."""

    env_id: str
    num_agents: int
    observations: dict[str, LeafSpec]
    action: ActionSpec

    def __str__(self) -> str:
        """For messages."""
        leaves = ", ".join(f"{name}: {leaf}" for name, leaf in self.observations.items())
        return f"{self.num_agents} agent{'s'[: self.num_agents - 1]}, observations {{{leaves}}}, actions {self.action}"

    def to_json(self) -> dict[str, Any]:
        """Numbers, texts and lists only; infinite bounds as text, since JSON has no infinity."""
        data = asdict(self)
        for bound in ("low", "high"):
            data["action"][bound] = [x if np.isfinite(x) else str(x) for x in data["action"][bound]]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnvInfo:
        """The inverse of `to_json`."""
        action = data["action"]
        return cls(
            env_id=str(data["env_id"]),
            num_agents=int(data["num_agents"]),
            observations={
                name: LeafSpec(**{**leaf, "shape": tuple(leaf["shape"])}) for name, leaf in data["observations"].items()
            },
            action=ActionSpec(
                **{
                    **action,
                    "shape": tuple(action["shape"]),
                    "low": tuple(float(x) for x in action["low"]),
                    "high": tuple(float(x) for x in action["high"]),
                }
            ),
        )


def observation_leaves(space: gymnasium.Space[Any]) -> dict[str, LeafSpec]:
    """The leaves of an observation space: Box, Discrete, or a flat Dict of these."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        if not space.spaces:
            raise EnvError("The observation space is an empty Dict. It needs at least one Box or Discrete entry.")
        return {name: _observation_leaf(leaf, f"Entry {name!r}") for name, leaf in space.spaces.items()}
    return {"obs": _observation_leaf(space, "The observation space")}


def _observation_leaf(space: gymnasium.Space[Any], what: str) -> LeafSpec:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return LeafSpec((), "int64", num_categories=int(space.n), start=int(space.start))
    if not isinstance(space, spaces.Box):
        raise EnvError(
            f"{what} is {space}, but observations are Box, Discrete or a flat Dict of these. "
            "Convert it with a wrapper, for example gymnasium.wrappers.FlattenObservation."
        )
    if 0 in space.shape:
        raise EnvError(f"{what} has shape {space.shape}, which holds no numbers. Every observation needs at least one.")
    dtype = STORED_DTYPES.get(np.dtype(space.dtype).name)
    if dtype is None:
        raise EnvError(
            f"{what} has dtype {space.dtype}, but observations are one of {', '.join(STORED_DTYPES)}. "
            "Convert it with gymnasium.wrappers.TransformObservation."
        )
    return LeafSpec(tuple(int(n) for n in space.shape), dtype)


def action_spec(space: gymnasium.Space[Any]) -> ActionSpec:
    """The actions of a Discrete space or of a one-dimensional Box of floats."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", (), "int64", num_actions=int(space.n), start=int(space.start))
    if not isinstance(space, spaces.Box):
        raise EnvError(f"The action space is {space}, but actions are Discrete or Box. Convert it with a wrapper.")
    if len(space.shape) != 1 or 0 in space.shape or not np.issubdtype(space.dtype, np.floating):
        raise EnvError(
            f"The action space is a Box of shape {space.shape} and dtype {space.dtype}, but a Box of actions has one "
            "axis with at least one float. Convert it with gymnasium.wrappers.TransformAction."
        )
    return ActionSpec(
        "box",
        tuple(int(n) for n in space.shape),
        "float32",
        low=tuple(float(x) for x in space.low),
        high=tuple(float(x) for x in space.high),
    )
