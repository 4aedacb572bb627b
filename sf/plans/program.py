"""The part of a plan that runs in its workers: policies, and the agents that they act for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from sf.errors import UsageError
from sf.plans.sample_batch import DEFAULT_POLICY
from sf.shared.arena import Array


def default_mapping(agent_id: int) -> str:
    """One policy for all agents."""
    return DEFAULT_POLICY


@dataclass(frozen=True)
class PolicySpec:
    """How to construct a policy, in any process."""

    policy_class: Callable[..., Any]
    observation_space: Any = None
    action_space: Any = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Any:
        """A new copy."""
        return self.policy_class(self.observation_space, self.action_space, dict(self.config))


@dataclass(frozen=True)
class Program:
    """Everything that a remote worker computes beside stepping environments."""

    policies: Mapping[str, PolicySpec]
    policy_of: Callable[[int], str] = default_mapping
    """From the number of an agent in its environment to the name of its policy; asked once per episode."""
    policies_to_train: Sequence[str] | None = None
    """Names; None for all."""
    postprocesses: bool = True
    """Whether workers postprocess the trajectories of a fragment; the driver does where it wants whole episodes."""

    look: tuple[Any, Any] = None, None
    """How to make the environment, and its spaces."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Those of the workers."""
    registered: Sequence[bytes] = ()
    """What Gymnasium knows of environments that only the program of the driver may have registered."""


def packed(what: str, thing: Any) -> bytes:
    """Something with all functions and classes that it holds, for another process.

    Raises:
        UsageError: it holds something that cannot be sent.
    """
    try:
        text: bytes = cloudpickle.dumps(thing)
    except Exception as error:
        raise UsageError(
            f"{what} cannot be sent to workers: {error}. It must not hold open files, locks or processes."
        ) from error
    return text


def unpacked(text: bytes) -> Program:
    """A program that was `packed`, in a worker."""
    program: Program = cloudpickle.loads(text)
    for spec in map(cloudpickle.loads, program.registered):
        gymnasium.registry.setdefault(spec.id, spec)
    return program


@dataclass(frozen=True)
class Column:
    """One column of a batch: the type of a row."""

    dtype: str
    """As shared memory has it."""
    shape: tuple[int, ...]
    may_be_whole: bool = False
    """Read as integers where all numbers of a fragment are whole: so a 1 may become 1.5 later, as in a list."""
    by_postprocessing: bool = False
    """Added after a policy has acted."""

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    @classmethod
    def of(cls, rows: Any) -> Column:
        """The column of rows [n, ...]."""
        array = np.asarray(rows)
        return cls(array.dtype.name, array.shape[1:])

    @classmethod
    def added(cls, name: str, rows: Any) -> Column:
        """Column of rows [n, ...] that a policy adds. Its integers of the default type are stored with 53 bits.

        Raises:
            UsageError: they are no numbers.
        """
        array = np.asarray(rows)
        if array.dtype.kind not in "biuf":
            kind = type(array.reshape(-1)[0]).__name__.rstrip("_")
            raise UsageError(
                f"The column {name!r} has a {kind} in each row. Recurrent states and extra columns are numbers or "
                "truth values, or arrays of them: give texts a number each."
            )
        may_be_whole = array.dtype == np.int64
        return cls("float64" if may_be_whole else array.dtype.name, array.shape[1:], may_be_whole)

    def read(self, rows: Array) -> Array:
        """Rows of shared memory as a policy gave them."""
        if self.may_be_whole:
            with np.errstate(invalid="ignore"):
                whole = rows.astype(np.int64)
            if (whole == rows).all():
                return whole
        return rows
