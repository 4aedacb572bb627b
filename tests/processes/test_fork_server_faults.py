"""Fork servers that are killed, stopped or refused, and the runs that have lost one."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from sf.errors import ExitCode, LearnerLost
from sf.processes import fork_server
from sf.processes.fork_server import ForkServer
from tests.helpers.commands import (
    CARTPOLE,
    ROOT,
    newest_version,
    run,
    running,
    wait_for_more,
    wait_for_saved_steps,
    wait_for_training,
)
from tests.helpers.fork_servers import (
    Tell,
    begin_again,
    exit_code,
    forked,
    message_of,
    pid_of,
    sleep_for_ever,
    tell_family,
)


def tell_and_sleep(tell: Tell) -> None:
    tell(os.getpid())
    time.sleep(1000)


def test_fault_a9_children_end_with_a_killed_server_and_another_one_can_be_started(server: ForkServer) -> None:
    child = forked(server, tell_and_sleep)
    assert message_of(child) == child.pid
    os.kill(pid_of(server), signal.SIGKILL)
    assert child.has_ended(60.0)
    with pytest.raises(LearnerLost, match=r"fork-server \(pid \d+\) was killed by SIGKILL, and every process"):
        server.look()
    assert exit_code(child) == -signal.SIGKILL
    begin_again(server, server.simulators)
    assert exit_code(forked(server, tell_family)) == 0


def test_fault_a9_newborn_ends_with_a_killed_server(server: ForkServer) -> None:
    """Also one that is not far enough to ask the kernel for it."""
    child = forked(server, sleep_for_ever)
    os.kill(pid_of(server), signal.SIGKILL)
    assert exit_code(child) in (-signal.SIGKILL, ExitCode.INTERNAL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_fault_a9_a13_request_to_a_server_that_does_not_answer(
    server: ForkServer, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "BIRTH_S", 0.2)
    descriptors = len(os.listdir("/proc/self/fd"))
    os.kill(pid_of(server), number)
    with pytest.raises(LearnerLost, match=r"fork-server .* (died before it had forked newborn|did not answer)"):
        forked(server, sleep_for_ever)
    assert len(os.listdir("/proc/self/fd")) < descriptors
    begin_again(server, server.simulators)
    assert exit_code(forked(server, tell_family)) == 0


REFUSED = """
import errno, os
from sf.processes import fork_server

def refused():
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

serve = fork_server._serve

def serve_without_forks(*arguments):
    os.fork = refused
    serve(*arguments)

fork_server._serve = serve_without_forks
serve_without_forks.__module__, serve_without_forks.__qualname__ = fork_server.__name__, "_serve"
"""


@pytest.mark.more
def test_fault_c4_kernel_that_refuses_a_fork_is_told(tmp_path: Path) -> None:
    """In whole runs, since it ends the server and what comes from it."""
    (tmp_path / "sitecustomize.py").write_text(REFUSED)
    finished = run(tmp_path, *CARTPOLE, "--train_for_env_steps=1000", python_path=f"{tmp_path}{os.pathsep}{ROOT}")
    assert finished.code == 5, finished.err
    assert re.search(r"fork-server \(pid \d+\): The machine gives no more .* \(of a container, ulimit -n", finished.err)
    assert "Traceback" not in finished.err


@pytest.mark.more
@pytest.mark.parametrize("restart", [False, True])
def test_fault_a9_end_of_the_fork_server_is_that_of_its_learner(tmp_path: Path, restart: bool) -> None:
    with running(tmp_path, *CARTPOLE, "--save_every_sec=1", f"--restart_learner={restart}") as command:
        wait_for_training(command)
        wait_for_saved_steps(command)
        (server,) = command.named("sf-fork-server")
        server.kill()
        if restart:
            command.wait_for_text("The run begins again")
            wait_for_more(command)
            command.process.send_signal(signal.SIGINT)
        finished = command.finish(20)
    assert finished.code == (130 if restart else 7), finished.err
    told = rf"fork-server \(pid {server.pid}\) (was killed by SIGKILL|died before it had forked)"
    assert re.search(told, finished.out if restart else finished.err)
    assert newest_version(tmp_path) > 0


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
