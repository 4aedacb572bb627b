"""The two fork servers of a run: what each forks, and a run that has lost the one of environments."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Any

import psutil
import pytest

import sf
from sf.processes import fork_server
from sf.processes.child import Child
from sf.processes.servers import ForkServers
from sf.processes.simulators import Simulators
from sf.processes.spare import ENVIRONMENTS, Spares
from tests.helpers.commands import CARTPOLE, running, wait_for_more, wait_for_training
from tests.helpers.fork_servers import exit_code, message_of
from tests.helpers.starter import new_program


def tell_parent_and_torch(tell: Callable[[Any], None]) -> None:
    tell((os.getppid(), "torch" in sys.modules, "gymnasium" in sys.modules))


@pytest.mark.parametrize("fault", ["none", "killed", "stopped"])
def test_fault_a9_environments_do_without_their_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    monkeypatch.setattr(fork_server, "BIRTH_S", 0.2)
    monkeypatch.setattr(util, "spawnv_passfds", new_program)  # which finds no torch
    with ForkServers() as servers:
        servers.simulators = simulators = Simulators()
        server = servers._environments
        assert server is not None
        server.start(simulators)
        while not server.is_ready:
            servers.look()
        assert server.child is not None
        pid = server.child.pid
        if fault != "none":
            os.kill(pid, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        child = Child("newborn", tell_parent_and_torch, simulators=simulators, begin=servers.begin_environments)
        expected = (pid, False, True) if fault == "none" else (os.getpid(), False, False)
        assert message_of(child) == expected
        assert exit_code(child) == 0
        told = capsys.readouterr().out
        assert told.count("processes with environments are started without it") == (fault != "none")
    assert not psutil.pid_exists(pid)


def test_spare_without_a_job_ends() -> None:
    spares = Spares()
    spares.start(ENVIRONMENTS)
    process = psutil.Process(spares._waiting[ENVIRONMENTS].pid)
    spares.close()
    assert not process.is_running()


@pytest.mark.more
def test_fault_a9_run_goes_on_without_the_server_of_environments(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        wait_for_training(command)
        (server,) = command.named("sf-env-server")
        workers = command.named("sf-rollout")
        assert {worker.ppid() for worker in workers} == {server.pid}
        server.kill()
        wait_for_more(command)
        command.process.send_signal(signal.SIGINT)
        finished = command.finish(20)
    assert finished.code == 130, finished.err
    assert f"The env-server (pid {server.pid}) was killed by SIGKILL" in finished.out
    assert "Restart 1 of rollout-0 follows" in finished.out


@pytest.mark.more
def test_run_in_one_process_keeps_no_servers(tmp_path: Path) -> None:
    """Although the flags have left open whether it has one."""
    seen: set[str] = set()

    def look(_: object) -> None:
        seen.update(process.name() for process in psutil.Process().children(recursive=True))

    sf.train(
        "sf/Carts-v0", train_dir=str(tmp_path), vectorization="tensors", num_envs_per_worker=64,
        train_for_env_steps=9000, on_iteration=look,
    )  # fmt: skip
    assert seen
    assert not {name for name in seen if name.startswith(("sf-fork", "sf-env"))}
