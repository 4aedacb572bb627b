"""Gymnasium spaces as flat tables: the facts about an environment that every process needs.

An observation is a dict of arrays, one per *leaf* of the observation space. An entry of nested Dict and Tuple spaces is
named by its path, such as ``"camera/0"``. A space that is neither has the one leaf ``"obs"``. An action is a row of
numbers, one per *column*: the choices of a Discrete, MultiDiscrete or MultiBinary space, and the components of a Box.
The facts are plain numbers and texts, so that they travel to spawned processes and into checkpoints without Gymnasium.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf, isfinite, prod
from typing import Any, Literal

from sf.errors import EnvError
from sf.spaces.images import SMALLEST_IMAGE_SIDE, SMALLEST_SIDES, image_layout

EXACT_IN_FLOAT32 = {"float32", "uint8", "int8", "int16"}
"""Stored types of which float32 holds every number."""

ACTION_MASK = "action_mask"
"""Name of the leaf that says which choices are legal; no network reads it."""

ROOT_LEAF = "obs"

WHITE = 255
"""Largest value of a pixel in most pictures."""

ActionBounds = Literal["scale", "clip", "tanh"]
"""How stored numbers of Box actions become those of the environment, see `sf.config.RolloutConfig`."""


@dataclass(frozen=True)
class LeafSpec:
    """One array of an observation."""

    shape: tuple[int, ...]
    dtype: str
    """Name of the numpy type in which the leaf is stored."""
    categories: tuple[int, ...] = ()
    """Number of categories of each element of a Discrete or MultiDiscrete leaf, in C order; empty for numbers."""
    starts: tuple[int, ...] = ()
    """The first category of each element in the environment; categories are stored as they come."""
    path: tuple[str | int, ...] = ()
    """Keys and indices that lead from the observation to the leaf."""
    brightest: int = field(default=WHITE, compare=False)
    """Upper bound of a picture that is stored as uint8, by which it is divided; no environment is refused for it."""

    def __str__(self) -> str:
        """For messages."""
        if not self.categories:
            return f"{self.dtype}{list(self.shape)}"
        ranges = (f"{start} to {start + n - 1}" for start, n in zip(self.starts, self.categories, strict=True))
        return f"categories {', '.join(ranges)}"

    @property
    def name(self) -> str:
        """Its path as one text."""
        return "/".join(map(str, self.path)) or ROOT_LEAF

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_wide(self) -> bool:
        """Whether it may hold numbers, such as seconds since 1970, that lose digits as float32."""
        return not self.categories and self.dtype not in EXACT_IN_FLOAT32


@dataclass(frozen=True)
class ActionColumn:
    """One number of an action: a choice, or one component of a Box."""

    num_choices: int = 0
    """0 for a component of a Box."""
    start: int = 0
    """The first choice in the environment; stored actions count from 0."""
    low: float = -inf
    high: float = inf
    """Bounds of a component, infinite where there is none."""

    def __str__(self) -> str:
        """For messages."""
        if self.num_choices:
            return f"choices {self.start} to {self.start + self.num_choices - 1}"
        return f"a number from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class ActionPart:
    """Neighbouring columns that are one array of the action that the environment takes."""

    path: tuple[str | int, ...]
    """Keys and indices that lead from the action to the array."""
    shape: tuple[int, ...]
    dtype: str
    """Name of the numpy type: int64 of choices, that of the space for numbers."""


@dataclass(frozen=True)
class ActionSpec:
    """The actions of one agent as they are stored."""

    columns: tuple[ActionColumn, ...]
    is_scalar: bool = False
    """A Discrete action, stored without an axis of its own."""
    parts: tuple[ActionPart, ...] = ()
    """How the columns make up the action of the environment; left out, all of them are one array."""

    def __post_init__(self) -> None:
        if not self.parts and self.columns:
            object.__setattr__(self, "parts", (ActionPart((), self.shape, self.dtype),))

    def __str__(self) -> str:
        """For messages."""
        kinds: list[list[Any]] = []
        for column in self.columns:
            if kinds and kinds[-1][0] == column:
                kinds[-1][1] += 1
            else:
                kinds.append([column, 1])
        return ", ".join(f"{count} x {column}" if count > 1 else str(column) for column, count in kinds)

    @property
    def shape(self) -> tuple[int, ...]:
        """() for a Discrete action, (number of columns,) for all others."""
        return () if self.is_scalar else (len(self.columns),)

    @property
    def dtype(self) -> Literal["int64", "float32"]:
        """Type of the stored action; choices beside the components of a Box are stored as floats."""
        return "int64" if all(column.num_choices for column in self.columns) else "float32"

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of choices of each column that is a choice."""
        return tuple(column.num_choices for column in self.columns if column.num_choices)

    @classmethod
    def discrete(cls, num_choices: int, start: int = 0) -> ActionSpec:
        """The action of a Discrete space."""
        return cls((ActionColumn(num_choices, start),), is_scalar=True)


@dataclass(frozen=True)
class EnvInfo:
    """The facts about an environment that processes need before one of them makes it."""

    env_id: str
    num_agents: int
    observations: dict[str, LeafSpec]
    action: ActionSpec
    mask_from_info: bool = False
    """Whether the mask among the observations is the one that the environment reports in its info."""
    agent_names: tuple[str, ...] = field(default=(), compare=False)
    """A name of each agent, such as ``adversary_0``, if there are any; no policy depends on them."""

    def __post_init__(self) -> None:
        """Refuses what no policy could read.

        Raises:
            EnvError: an image with channels in the middle, or a mask that does not fit the actions.
        """
        for leaf in self.observations.values():
            image_layout(leaf)
        mask, num_choices = self.observations.get(ACTION_MASK), sum(self.action.choices)
        if mask is not None and (mask.shape != (num_choices,) or mask.categories):
            raise EnvError(
                f"The observation {ACTION_MASK!r} is {mask}, but actions have {num_choices} choices: {self.action}. "
                f"A mask is a vector of {num_choices} numbers, 0 for what is not allowed, column after column."
            )

    def __str__(self) -> str:
        """For messages."""
        leaves = ", ".join(f"{name}: {leaf}" for name, leaf in self.observations.items())
        return f"{self.num_agents} agent{'s'[: self.num_agents - 1]}, observations {{{leaves}}}, actions {self.action}"

    def agent(self, row: int) -> str:
        """The agent of a row of several environments, for messages; nothing where each has only one."""
        if self.num_agents == 1:
            return ""
        index = row % self.num_agents
        return f"agent {self.agent_names[index]!r}" if self.agent_names else f"agent {index}"

    def notes(self, architecture: str) -> list[str]:
        """Sentences about what these convolutions read in another way than the user may expect."""
        notes = []
        for name, leaf in self.observations.items():
            axes = len(leaf.shape)
            looks_like_image = leaf.dtype == "uint8" and axes in (2, 3) and image_layout(leaf, architecture) is None
            if name == ACTION_MASK or leaf.categories or not (axes > 3 or looks_like_image):
                continue
            advice = (
                "give it 2 or 3 axes: [height, width, channels]"
                if axes > 3
                else f"its height and width must be at least {SMALLEST_SIDES.get(architecture, SMALLEST_IMAGE_SIDE)}; "
                + ", ".join(f"{least} with --encoder_conv_architecture={net}" for net, least in SMALLEST_SIDES.items())
            )
            vector = f"read as a vector of {leaf.size} numbers"
            notes.append(f"Observation {leaf.name!r} has shape {leaf.shape}: {vector}. For an image, {advice}.")
        return notes

    def to_json(self) -> dict[str, Any]:
        """Numbers, texts and lists only; infinite bounds as text, since JSON has no infinity."""
        data = asdict(self)
        if not self.agent_names:  # so that checkpoints of 0.2 can be gone on from
            del data["agent_names"]
        # A list, because files sort the keys of objects and the network reads the leaves in their order.
        data["observations"] = [{"name": name, **leaf} for name, leaf in data["observations"].items()]
        for leaf in data["observations"]:
            if leaf["brightest"] == WHITE:  # so that checkpoints of early 0.1 can be gone on from
                del leaf["brightest"]
        for column in data["action"]["columns"]:
            for bound in ("low", "high"):
                column[bound] = column[bound] if isfinite(column[bound]) else str(column[bound])
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnvInfo:
        """The inverse of `to_json`."""
        stored = data["observations"]
        if isinstance(stored, Mapping):  # checkpoints of early 0.1
            if len(stored) > 1:
                raise ValueError("the order of its observations was not saved")
            stored = [{"name": name, **leaf} for name, leaf in stored.items()]
        leaves = {
            leaf["name"]: LeafSpec(
                tuple(leaf["shape"]),
                leaf["dtype"],
                tuple(leaf["categories"]),
                tuple(leaf["starts"]),
                tuple(leaf["path"]),
                int(leaf.get("brightest", WHITE)),
            )
            for leaf in stored
        }
        columns = tuple(
            ActionColumn(**{**column, "low": float(column["low"]), "high": float(column["high"])})
            for column in data["action"]["columns"]
        )
        parts = tuple(
            ActionPart(tuple(part["path"]), tuple(part["shape"]), part["dtype"])
            for part in data["action"].get("parts", ())  # checkpoints of 0.1 have none
        )
        action = ActionSpec(columns, bool(data["action"]["is_scalar"]), parts)
        names = tuple(map(str, data.get("agent_names", ())))
        return cls(str(data["env_id"]), int(data["num_agents"]), leaves, action, bool(data["mask_from_info"]), names)
