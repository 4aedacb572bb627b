"""The work of a process, apart from being a process.

A role object offers `step() -> bool` (do what can be done now), `wait(timeout_s)` and `close()`. The same objects run
in turn in one process in serial mode, and some of them always do.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sf.plugins import NOTHING, Sent, receive_plugins
from sf.shared.progress import Phase
from sf.shared.records import Record


class Role(Protocol):
    """One of the objects that a run is made of."""

    record: Record
    """Its counters."""
    tell: Callable[[Any], None]
    """How it sends a message to the supervisor; set by the process that runs the role, after it was built."""

    def step(self) -> bool:
        """Does what can be done now; False if nothing could be done."""

    def wait(self, timeout_s: float) -> None:
        """Sleeps until there may be something to do."""

    def close(self) -> None:
        """Ends in order."""

    def state(self) -> dict[str, Any] | None:
        """The state that a resumed run needs beside shared memory; None if it cannot be enough.

        It consists of plain JSON types and tensors.
        """

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""


@dataclass(frozen=True)
class RoleSpec:
    """How to build a role in its own process, without importing its module here."""

    name: str
    factory: str | Callable[..., Role]
    """`module:Class`, imported in the child, or something that can be pickled."""
    arguments: dict[str, Any]
    kind: str
    """Which records are its own, see `sf.shared.records`."""
    index: int
    """Among the records of this kind."""
    plugins: Sent = NOTHING
    """Encoders and algorithms that the user has registered."""
    deadlines_s: Mapping[Phase, float] = field(default_factory=dict)
    """The longest that one unit of work may take in each phase, where there is a limit."""
    has_environments: bool = False
    """They may start processes of their own."""
    can_be_replaced: bool = False
    """A successor can go on where it died, because no process shares a lock with it."""
    has_thread: bool = False
    """Where all roles are in one process, it works in a thread of its own."""
    companions: tuple[RoleSpec, ...] = ()
    """Roles that live in the same process and have their turn before it; its doorbell wakes them."""

    def successor(self, incarnation: int) -> RoleSpec:
        """The specification of its successor when it has died for the n-th time."""
        companions = tuple(companion.successor(incarnation) for companion in self.companions)
        return replace(self, arguments=self.arguments | {"incarnation": incarnation}, companions=companions)

    def with_factories(self, instead: Mapping[str, str], **arguments: Any) -> RoleSpec:
        """The same with other classes in the place of some, which take further arguments."""
        companions = tuple(companion.with_factories(instead, **arguments) for companion in self.companions)
        if not (isinstance(self.factory, str) and self.factory in instead):
            return replace(self, companions=companions)
        factory = instead[self.factory]
        return replace(self, factory=factory, arguments=self.arguments | arguments, companions=companions)

    def build(self) -> Role:
        """Builds the role, in the process that calls this."""
        companions = [companion.build() for companion in self.companions]  # before environments, which may do anything
        role = self._build_alone()
        return RoleGroup(role, companions) if companions else role

    def _build_alone(self) -> Role:
        receive_plugins(self.plugins)
        factory: Any = self.factory
        if isinstance(factory, str):
            module, _, name = factory.partition(":")
            factory = getattr(importlib.import_module(module), name)
        role: Role = factory(**self.arguments)
        return role


class RoleGroup:
    """Several roles in one process: that of the process, and others that have their turn before it."""

    def __init__(self, role: Role, companions: Sequence[Role]) -> None:
        self.role, self.companions = role, list(companions)
        self.record = role.record

    @property
    def tell(self) -> Callable[[Any], None]:
        """See `Role`."""
        return self.role.tell

    @tell.setter
    def tell(self, tell: Callable[[Any], None]) -> None:
        for role in (self.role, *self.companions):
            role.tell = tell

    def step(self) -> bool:
        """See `Role`; while one of them works, the others wait."""
        progressed = False
        for role in (*self.companions, self.role):
            role.record.lap("wait")
            progressed |= role.step()
        return progressed

    def wait(self, timeout_s: float) -> None:
        """See `Role`."""
        self.role.wait(timeout_s)

    def close(self) -> None:
        """See `Role`."""
        for role in (*self.companions, self.role):
            role.close()

    def state(self) -> dict[str, Any] | None:
        """See `Role`."""
        states = [role.state() for role in (self.role, *self.companions)]
        return None if None in states else {"together": states}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Role`."""
        # In runs that 0.2.0 has begun there is a state of each policy, and the first one has what is needed.
        for role, own in zip((self.role, *self.companions), state["together"], strict=False):
            role.load_state(own)
