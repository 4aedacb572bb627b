"""A fork server for the tests of processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sf.processes.fork_server import ForkServer
from sf.processes.spare import MODULES, NETWORKS
from tests.helpers.fork_servers import serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """One that has loaded little, but for what all that is forked from it would share."""
    monkeypatch.setitem(MODULES, NETWORKS, ("numpy.random",))
    with serving() as server:
        yield server
