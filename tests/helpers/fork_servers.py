"""Fork servers with little in them, their children, and functions that these run."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sf.processes.child import Child
from sf.processes.fork_server import ForkServer
from sf.processes.simulators import Simulators
from sf.processes.spare import NETWORKS, Spares

Tell = Callable[[Any], None]


@contextlib.contextmanager
def serving() -> Iterator[ForkServer]:
    """One that has loaded, and what watches over its forks."""
    simulators, server = Simulators(), ForkServer(NETWORKS, Spares())
    try:
        begin_again(server, simulators)
        yield server
    finally:
        server.end()
        simulators.close()


def begin_again(server: ForkServer, simulators: Simulators) -> None:
    server.start(simulators)
    wait_until_ready(server)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_ready(server: ForkServer) -> None:
    def is_ready() -> bool:
        server.look()
        return server.is_ready

    wait_until(is_ready)


def forked(server: ForkServer, function: Callable[..., Any], *arguments: Any, incarnation: int = 0) -> Child:
    return Child(
        "newborn", function, *arguments, simulators=server.simulators, incarnation=incarnation, begin=server.begin
    )


def pid_of(server: ForkServer) -> int:
    assert server.child is not None
    return server.child.pid


def message_of(child: Child) -> Any:
    found: list[Any] = []

    def hear() -> list[Any]:
        found.extend(child.hear())
        return found

    wait_until(hear)
    return found[0]


def exit_code(child: Child) -> int | None:
    assert child.has_ended(60.0)
    child.hear()
    child.reap()
    return child.exit_code


def tell_family(tell: Tell) -> None:
    tell((os.getpid(), os.getppid(), np.random.random()))


def sleep_for_ever(tell: Tell) -> None:
    time.sleep(1000)
