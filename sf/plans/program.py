"""The part of a plan that runs in its workers: policies, and the agents that they act for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np

from sf.errors import UsageError
from sf.plans.sample_batch import DEFAULT_POLICY


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

    def to_bytes(self) -> bytes:
        """With functions and classes that are defined in a script or in other functions.

        Raises:
            UsageError: it holds something that cannot be sent to a process.
        """
        return packed("A plan", self)


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
    """The inverse of `Program.to_bytes`."""
    program: Program = cloudpickle.loads(text)
    return program


@dataclass(frozen=True)
class Column:
    """One column of a batch: the type of a row."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    @classmethod
    def of(cls, rows: Any) -> Column:
        """Of rows [n, ...]."""
        array = np.asarray(rows)
        return cls(array.dtype.name, array.shape[1:])
