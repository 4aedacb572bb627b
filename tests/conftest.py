"""What all tests share."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from sf.run import sizes
from tests.helpers.monitored import Run, Start
from tests.helpers.starter import close_starter, start_program

settings.register_profile("sf", deadline=None)  # a machine that stands still for a moment has shown nothing
settings.load_profile("sf")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell without jobs that has started this in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def oracles() -> dict[str, Any]:
    """Inputs and expected outputs by contract row."""
    data: dict[str, Any] = json.loads((Path(__file__).parent / "oracles.json").read_text())
    return data


@pytest.fixture(scope="session", autouse=True)
def end_of_the_starter() -> Iterator[None]:
    """Ends the process that forks commands, if there is one."""
    yield
    close_starter()


@pytest.fixture(scope="session", autouse=True)
def forked_children() -> Iterator[None]:
    """Children of this process are forks of a Python that has loaded torch, fork servers of runs among them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(util, "spawnv_passfds", start_program)
        yield


@pytest.fixture(autouse=True)
def repeated_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process that are given no seed draw the same one each time: no test fails one day in a hundred."""
    draws = Random(request.node.nodeid)
    monkeypatch.setattr(sizes, "secrets", SimpleNamespace(randbits=draws.getrandbits))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts monitored runs in the directory of the test and ends those that the test leaves open."""
    runs: list[Run] = []

    def start_run(**settings: Any) -> Run:
        runs.append(Run(tmp_path, **settings))
        return runs[-1]

    yield start_run
    for run in runs:
        if not run.is_finished:
            run.finish()
