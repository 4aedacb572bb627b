"""The fork server: what it forks belongs to who asked, whatever becomes of the server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.spawn import get_preparation_data
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from sf.errors import ExitCode, RestartsSpent
from sf.processes import fork_server
from sf.processes.fork_server import ForkedProcess, ForkServer
from sf.processes.parcel import MOST_DESCRIPTORS, Parcel
from sf.shared.arena import Arena, Field
from sf.shared.doorbell import Doorbell
from tests.helpers.commands import (
    CARTPOLE,
    ROOT,
    Running,
    run,
    running,
)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(max_restarts=0) as server:
        server.start()
        wait_until_ready(server)
        yield server


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


def born(server: ForkServer, function: Any, *arguments: Any) -> ForkedProcess:
    process = server.fork("newborn", mark_of_newborn(server), function, *arguments)
    assert process is not None
    return process


def mark_of_newborn(server: ForkServer) -> str:
    assert server.simulators is not None
    return server.simulators.mark_of("newborn", 0)


def exit_code(process: ForkedProcess) -> int:
    wait_until(lambda: process.exitcode is not None)
    assert process.exitcode is not None
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


def start_some_and_sleep(reports: Connection) -> None:
    """A fork shows the environment that the kernel sees, a program the one that it is given."""
    forked = os.fork()
    if forked:
        reports.send((forked, subprocess.Popen(["sleep", "1000"], start_new_session=True).pid))
    sleep_for_ever()


def test_fault_a14_what_a_child_has_started_ends_with_it_and_nothing_else(server: ForkServer) -> None:
    simulators = server.simulators
    assert simulators is not None
    marks = [simulators.mark_of("newborn", incarnation) for incarnation in range(2)]
    families = [family_of(server, mark) for mark in marks]
    for mark, (process, started) in zip(marks, families, strict=True):
        assert all(psutil.pid_exists(pid) for pid in started)
        process.kill()
        assert wait([process.pidfd], timeout=60)
        simulators.end_of(process.pid, mark)
        assert not any(psutil.pid_exists(pid) for pid in started)
        assert exit_code(process) == -signal.SIGKILL


def test_fault_a14_nothing_is_left_at_the_end() -> None:
    """What was missed when its parent ended included."""
    with ForkServer(max_restarts=0) as server:
        server.start()
        wait_until_ready(server)
        process, started = family_of(server, mark_of_newborn(server))
        process.kill()
        assert exit_code(process) == -signal.SIGKILL
        assert all(psutil.pid_exists(pid) for pid in started)
    assert not any(psutil.pid_exists(pid) for pid in started)


def family_of(server: ForkServer, mark: str) -> tuple[ForkedProcess, tuple[int, int]]:
    """A process, and what it has forked and started."""
    reports, child_end = Pipe(duplex=False)
    process = server.fork("newborn", mark, start_some_and_sleep, child_end)
    child_end.close()
    assert process is not None
    return process, reports.recv()


def test_it_keeps_no_descriptor(server: ForkServer) -> None:
    arena, doorbells = Arena({"numbers": Field((1,), "int8"), "sum": Field((1,), "int8")}), [Doorbell()]
    folder = Path(f"/proc/{server.pid}/fd")
    exit_code(born(server, add_up, arena, doorbells))
    time.sleep(0.2)  # the server closes its own a moment after the child has begun
    before = len(list(folder.iterdir()))
    for _ in range(20):
        exit_code(born(server, add_up, arena, doorbells))
    wait_until(lambda: len(list(folder.iterdir())) <= before + 2)


def test_exit_code_says_how_a_child_ended(server: ForkServer) -> None:
    killed = born(server, sleep_for_ever)
    assert killed.exitcode is None
    killed.kill()
    assert exit_code(killed) == -signal.SIGKILL
    killed.kill()  # its pid may be somebody else's by now
    assert exit_code(born(server, raise_something)) == ExitCode.INTERNAL


def test_what_nobody_has_accepted_never_runs(server: ForkServer) -> None:
    """As when the process between the two forks is killed before it can say what was born."""
    arena = Arena({"numbers": Field((1,), "int8", fill=1), "sum": Field((1,), "int8")})
    permission, permit = Pipe(duplex=False)
    pid = server._born(
        Parcel((mark_of_newborn(server), get_preparation_data("newborn"), permission), (add_up, (arena, [])))
    )
    assert pid is not None
    permission.close()
    permit.close()
    assert exit_code(ForkedProcess(pid)) == ExitCode.INTERNAL
    assert arena["sum"][0] == 0


def test_script_of_the_user_is_imported_by_the_child_alone(tmp_path: Path) -> None:
    """It may begin what no fork survives."""
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "print('imported by', multiprocessing.current_process().name, flush=True)\n"
        "def work():\n"
        "    print('worked', flush=True)\n"
        "if __name__ == '__main__':\n"
        "    from tests.processes.test_fork_server import ForkServer, born, exit_code, wait_until_ready\n"
        "    with ForkServer(max_restarts=0) as server:\n"
        "        server.start()\n"
        "        wait_until_ready(server)\n"
        "        exit_code(born(server, work))\n"
    )
    environment = os.environ | {"PYTHONPATH": ROOT}
    finished = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=100)
    assert finished.stdout.splitlines() == ["imported by MainProcess", "imported by newborn", "worked"], finished.stderr


def test_child_outlives_the_server_which_is_replaced_so_many_times() -> None:
    with ForkServer(max_restarts=2) as server:
        server.start()
        wait_until_ready(server)
        child = born(server, sleep_for_ever)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert server.fork("newborn", mark_of_newborn(server), sleep_for_ever) is None
        assert not server.is_ready
        os.kill(server.pid, signal.SIGKILL)  # the one that loads
        wait_until_ready(server)
        another = born(server, sleep_for_ever)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(RestartsSpent, match="loads torch, died again and again"):
            server.fork("newborn", mark_of_newborn(server), sleep_for_ever)
        for process in (child, another):
            assert process.exitcode is None
            process.kill()
            assert exit_code(process) == -signal.SIGKILL


def test_fault_a9_stopped_server_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is noticed although a child lives that has its descriptors."""
    monkeypatch.setattr(fork_server, "KILL_GRACE_S", 1000.0)
    with ForkServer(max_restarts=1) as server:
        server.start()
        wait_until_ready(server)
        child = born(server, sleep_for_ever)
        monkeypatch.setattr(fork_server, "BIRTH_S", 0.2)
        stopped = server.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        assert server.fork("newborn", mark_of_newborn(server), sleep_for_ever) is None
        assert server.pid != stopped
        with pytest.raises(ProcessLookupError):
            os.kill(stopped, 0)
        child.kill()
        assert exit_code(child) == -signal.SIGKILL


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


LOADED_WHILE_TRAINING = """
import importlib, json, sys
from pathlib import Path
from sf.processes.fork_server import LOADED_BEFORE
from sf.shared.ledger import Ledger
from tests.helpers.lab import make_lab, step_until

lab = make_lab(Path(sys.argv[1]), "Pendulum-v1")
for module in LOADED_BEFORE:
    importlib.import_module(module)
before = set(sys.modules)
step_until(lab.build_all(), lambda: Ledger.of(lab.slots, has_ended=False).learned > 0)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_roles_load_nothing_large_when_they_work(tmp_path: Path) -> None:
    """What one loads after the fork it loads alone, and its first steps take that time."""
    line = [sys.executable, "-c", LOADED_WHILE_TRAINING, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT, timeout=100)
    late = json.loads(done.stdout.splitlines()[-1])
    assert len(late) < 5, late


FIRST_STEP = """
import importlib, sys
from sf.processes.fork_server import LOADED_BEFORE
for name in LOADED_BEFORE:
    importlib.import_module(name)
from tests.helpers.updates import Update, act, learner_config, make_policy, train
update = Update(make_policy(), learner_config())
update.want_summary = True
batch, before = act(update.policy), set(sys.modules)
train(update, batch)
print(*set(sys.modules) - before)
"""


def test_a_learner_loads_nothing_in_its_first_step() -> None:
    command = [sys.executable, "-c", FIRST_STEP]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.split() == []
