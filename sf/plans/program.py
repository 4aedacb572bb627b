"""The part of a plan that runs in its workers: policies, and the agents that they act for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import gymnasium

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
    """A program that was `packed`, in a worker.

    Raises:
        UsageError: a module of the driver cannot be imported there.
    """
    try:
        program: Program = cloudpickle.loads(text)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Workers do not find the module {error.name!r}, which the plan has classes or functions of. Put its "
            "directory into PYTHONPATH or sys.path, or give its file to sf-plan."
        ) from error
    for spec in map(cloudpickle.loads, program.registered):
        gymnasium.registry.setdefault(spec.id, spec)
    return program


def unknown_settings(what: str, given: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """A sentence for each setting below another one that there is not."""
    known, sentences = list(known), []
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
            sentences.append(f"There is no setting {name!r} in {what}. {hint}")
    return sentences
