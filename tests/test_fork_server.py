"""The fork server: what it forks belongs to who asked, whatever becomes of the server."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sf import fork_server
from sf.arena import Arena, Field
from sf.doorbell import Doorbell
from sf.errors import RestartsSpent
from sf.fork_server import ForkedProcess, ForkServer
from sf.parcel import MOST_DESCRIPTORS
from tests.commands import ROOT, Running, run, running

CARTPOLE = ("--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=4", "--seed=1")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(max_restarts=0) as server:
        server.start()
        wait_until_ready(server)
        yield server


def wait_until_ready(server: ForkServer) -> None:
    deadline = time.monotonic() + 60
    while not server.is_ready:
        server.look()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def born(server: ForkServer, function: Any, *arguments: Any) -> ForkedProcess:
    process = server.fork(function, *arguments)
    assert process is not None
    return process


def exit_code(process: ForkedProcess) -> int:
    deadline = time.monotonic() + 60
    while process.exitcode is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process.exitcode


def tell_parent(reports: Connection) -> None:
    reports.send((os.getpid(), os.getppid()))


def add_up(arena: Arena, doorbells: list[Doorbell]) -> None:
    assert len({bell.fileno() for bell in doorbells}) == len(doorbells)
    arena["sum"][:] = arena["numbers"].sum()
    for bell in doorbells:
        bell.ring()


def sleep_for_ever() -> None:
    time.sleep(1000)


def raise_something() -> None:
    raise ValueError("on purpose")


def test_child_belongs_to_who_asked_for_it(server: ForkServer) -> None:
    reports, child_end = Pipe(duplex=False)
    process = born(server, tell_parent, child_end)
    assert reports.recv() == (process.pid, os.getpid())
    assert exit_code(process) == 0


def test_shared_memory_and_any_number_of_doorbells_travel(server: ForkServer) -> None:
    arena = Arena({"numbers": Field((100,), "float32"), "sum": Field((1,), "float64")})
    arena["numbers"][:] = np.arange(100)
    doorbells = [Doorbell() for _ in range(2 * MOST_DESCRIPTORS + 1)]
    assert exit_code(born(server, add_up, arena, doorbells)) == 0
    assert arena["sum"][0] == 4950
    assert all(bell.wait(0.0) for bell in doorbells)


def test_it_keeps_no_descriptor(server: ForkServer) -> None:
    open_before = len(os.listdir(f"/proc/{server.pid}/fd"))
    for _ in range(3):
        exit_code(
            born(server, add_up, Arena({"numbers": Field((1,), "int8"), "sum": Field((1,), "int8")}), [Doorbell()])
        )
    assert len(os.listdir(f"/proc/{server.pid}/fd")) == open_before


def test_exit_code_says_how_a_child_ended(server: ForkServer) -> None:
    killed = born(server, sleep_for_ever)
    assert killed.exitcode is None
    killed.kill()
    assert exit_code(killed) == -signal.SIGKILL
    killed.kill()  # its pid may be somebody else's by now
    assert exit_code(born(server, raise_something)) == 1


def test_child_outlives_the_server_which_is_started_again_so_many_times() -> None:
    with ForkServer(max_restarts=1) as server:
        server.start()
        wait_until_ready(server)
        child = born(server, sleep_for_ever)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert server.fork(sleep_for_ever) is None
        assert not server.is_ready
        wait_until_ready(server)
        born(server, sleep_for_ever).kill()
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(RestartsSpent, match="loads torch, died again and again"):
            wait_for_death(server)
    assert child.exitcode is None
    child.kill()
    assert exit_code(child) == -signal.SIGKILL


def test_fault_a9_stopped_server_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would fork later is killed at birth: nobody waits for it any more."""
    monkeypatch.setattr(fork_server, "BIRTH_S", 0.2)
    with ForkServer(max_restarts=1) as server:
        server.start()
        wait_until_ready(server)
        stopped = server.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        assert server.fork(sleep_for_ever) is None
        assert server.pid != stopped
        with pytest.raises(ProcessLookupError):
            os.kill(stopped, 0)


def wait_for_death(server: ForkServer) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        server.look()
        time.sleep(0.01)


def has_successor(command: Running, old_pid: int) -> bool:
    return any(one.pid != old_pid for one in command.named("sf-inference"))


def test_fault_a9_killed_fork_server_is_replaced(tmp_path: Path) -> None:
    """Nobody depends on it; the next process that is needed comes from another one."""
    with running(tmp_path, *CARTPOLE, "--train_for_env_steps=10_000_000") as command:
        command.wait_for(lambda: re.search(r"Samples: [1-9]", command.out), "training")
        (server,), (victim,) = command.named("sf-fork-server"), command.named("sf-inference-0-0")
        server.kill()
        victim.kill()
        command.wait_for_text("Restart 1 of inference-0-0 follows")
        command.wait_for(partial(has_successor, command, victim.pid), "another inference worker")
        assert server.pid not in {one.pid for one in command.named("sf-fork-server")}
        command.process.send_signal(signal.SIGINT)
        finished = command.finish()
    assert finished.code == 130, finished.err
    assert "Slots: " in finished.out


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raise ImportError('libbroken.so: cannot open shared object file')", "libbroken.so"),
        ("import os; os.abort()", "The fork-server died while it loaded torch"),
    ],
    ids=["error", "crash"],
)
def test_fault_a9_torch_that_cannot_be_loaded_ends_the_run(tmp_path: Path, fault: str, text: str) -> None:
    package = tmp_path / "broken" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(fault)
    path = f"{package.parent}{os.pathsep}{ROOT}"
    finished = run(tmp_path, *CARTPOLE, "--train_for_env_steps=1000", python_path=path)
    assert finished.code == 7, finished.err
    assert text in finished.err
    assert not list(tmp_path.rglob("checkpoint_0*"))
