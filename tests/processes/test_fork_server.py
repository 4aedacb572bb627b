"""The fork server: what it forks is as any other child, and nothing outlives it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from sf.errors import ExitCode, LearnerLost
from sf.processes import fork_server
from sf.processes.child import Child
from sf.processes.fork_server import MOST_DESCRIPTORS, ForkServer
from sf.processes.simulators import Simulators
from sf.processes.spare import MODULES, NETWORKS, Spares
from sf.shared.arena import Arena, Field
from sf.shared.doorbell import Doorbell
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
from tests.helpers.starter import new_program

Tell = Callable[[Any], None]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """One that has loaded little, but for what all that is forked from it would share."""
    monkeypatch.setitem(MODULES, NETWORKS, ("numpy.random",))
    with serving() as server:
        yield server


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


def add_up(tell: Tell, arena: Arena, doorbells: list[Doorbell]) -> None:
    assert len({bell.fileno() for bell in doorbells}) == len(doorbells)
    arena["sum"][:] = arena["numbers"].sum()
    for bell in doorbells:
        bell.ring()


def huge_kb_of_64_mb() -> int:
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    ctypes.memset(malloc(2**26), 1, 2**26)
    (huge_kb,) = re.findall(r"AnonHugePages: *([0-9]+) kB", Path("/proc/self/smaps_rollup").read_text())
    return int(huge_kb)


def huge_kb_of_a_program(tunables: str) -> int:
    """What this machine gives to a program with this variable."""
    line = f"from {__name__} import huge_kb_of_64_mb; print(huge_kb_of_64_mb())"
    finished = subprocess.run(
        [sys.executable, "-c", line], env=os.environ | {"GLIBC_TUNABLES": tunables}, cwd=ROOT, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return int(finished.stdout)


def tell_huge_pages(tell: Tell, *_: Doorbell) -> None:
    tell((huge_kb_of_64_mb(), os.environ["GLIBC_TUNABLES"]))


def sleep_for_ever(tell: Tell) -> None:
    time.sleep(1000)


def tell_and_sleep(tell: Tell) -> None:
    tell(os.getpid())
    time.sleep(1000)


def raise_something(tell: Tell) -> None:
    raise ValueError("on purpose")


def test_children_come_from_the_server_and_draw_numbers_of_their_own(server: ForkServer) -> None:
    drawn = set()
    for _ in range(2):
        child = forked(server, tell_family)
        pid, parent, number = message_of(child)
        assert (pid, parent) == (child.pid, pid_of(server))
        assert exit_code(child) == 0
        drawn.add(number)
    assert len(drawn) == 2


@pytest.mark.parametrize("number", [1, MOST_DESCRIPTORS - 1, 2 * MOST_DESCRIPTORS])
def test_shared_memory_and_any_number_of_doorbells_travel(server: ForkServer, number: int) -> None:
    arena = Arena({"numbers": Field((100,), "float32"), "sum": Field((1,), "float64")})
    arena["numbers"][:] = np.arange(100)
    doorbells = [Doorbell() for _ in range(number)]
    assert exit_code(forked(server, add_up, arena, doorbells)) == 0
    assert arena["sum"][0] == 4950
    assert all(bell.wait(0.0) for bell in doorbells)


@pytest.mark.parametrize(
    ("own", "all_of_them", "num_descriptors"),
    [
        (None, "glibc.malloc.hugetlb=1", 0),
        (None, "glibc.malloc.hugetlb=1", 2 * MOST_DESCRIPTORS),  # which no fork server takes
        ("glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1", 0),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0", 0),
    ],
)
def test_memory_of_children_is_in_huge_pages_where_the_machine_has_them(
    monkeypatch: pytest.MonkeyPatch, own: str | None, all_of_them: str, num_descriptors: int
) -> None:
    monkeypatch.setitem(MODULES, NETWORKS, ())
    monkeypatch.setattr(util, "spawnv_passfds", new_program)  # the variable is read at the start
    if own is None:
        monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    else:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    with serving() as server:
        assert os.environ.get("GLIBC_TUNABLES") == own
        wait_until_ready(server)
        doorbells = [Doorbell() for _ in range(num_descriptors)]
        huge_kb, tunables = message_of(forked(server, tell_huge_pages, *doorbells))
    assert tunables == all_of_them
    assert (huge_kb > 2**15) == (huge_kb_of_a_program(all_of_them) > 2**15)


@pytest.mark.more
def test_fault_c3_limit_on_open_files_that_was_raised_after_the_start(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        few = len(os.listdir("/proc/self/fd")) + 40  # tests before this one may have left some open
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
        with serving() as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            arena = Arena({"numbers": Field((1,), "int8"), "sum": Field((1,), "int8")})
            assert exit_code(forked(server, add_up, arena, [Doorbell() for _ in range(100)])) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def start_one_and_sleep(tell: Tell) -> None:
    tell(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
    time.sleep(1000)


def test_fault_a14_program_that_a_child_has_started_ends_with_it_and_no_other(server: ForkServer) -> None:
    families = []
    for incarnation in range(2):
        child = forked(server, start_one_and_sleep, incarnation=incarnation)
        families.append((child, message_of(child)))
    for child, program in families:
        assert psutil.pid_exists(program)
        child.kill()
        assert exit_code(child) == -signal.SIGKILL
        assert not psutil.pid_exists(program)


def fork_one_and_sleep(tell: Tell) -> None:
    if forked := os.fork():
        tell(forked)
    else:
        os.setsid()
    time.sleep(1000)


def test_fault_a14_fork_of_a_child_ends_with_it_and_no_other(server: ForkServer) -> None:
    """Although it has begun no program and has a session of its own."""
    families = []
    for incarnation in range(2):
        child = forked(server, fork_one_and_sleep, incarnation=incarnation)
        families.append((child, message_of(child)))
    for child, fork in families:
        assert psutil.pid_exists(fork)
        child.kill()
        assert exit_code(child) == -signal.SIGKILL
        assert not psutil.pid_exists(fork)


@pytest.mark.more
def test_it_keeps_no_descriptor(server: ForkServer) -> None:
    arena, doorbells = Arena({"numbers": Field((1,), "int8"), "sum": Field((1,), "int8")}), [Doorbell()]
    folders = [Path(f"/proc/{pid}/fd") for pid in (pid_of(server), os.getpid())]
    exit_code(forked(server, add_up, arena, doorbells))
    before = [len(list(folder.iterdir())) for folder in folders]
    for _ in range(20):
        exit_code(forked(server, add_up, arena, doorbells))
    after = [len(list(folder.iterdir())) for folder in folders]
    assert after[0] <= before[0] + 2, "it closes those of the last child a moment later"
    assert after[1] == before[1]


def test_exit_code_says_how_a_child_ended(server: ForkServer) -> None:
    killed = forked(server, sleep_for_ever)
    assert not killed.has_ended()
    killed.kill()
    assert exit_code(killed) == -signal.SIGKILL
    failed = forked(server, raise_something)
    assert exit_code(failed) == 7
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.message) == ("ValueError", "on purpose")


@pytest.mark.more
def test_script_of_the_user_is_imported_by_the_child_alone(tmp_path: Path) -> None:
    """It may begin what no fork survives."""
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "print('imported by', multiprocessing.current_process().name, flush=True)\n"
        "def work(tell):\n"
        "    print('worked', flush=True)\n"
        "if __name__ == '__main__':\n"
        "    from tests.processes.test_fork_server import exit_code, forked, serving\n"
        "    with serving() as server:\n"
        "        exit_code(forked(server, work))\n"
    )
    environment = os.environ | {"PYTHONPATH": ROOT}
    finished = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=100)
    assert finished.stdout.splitlines() == ["imported by MainProcess", "imported by newborn", "worked"], finished.stderr


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


def test_no_other_user_finds_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that could send it a request would run code in the name of this user."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(MODULES, NETWORKS, ())
    with serving() as server:
        assert exit_code(forked(server, tell_family)) == 0
        assert list(tmp_path.iterdir()) == []


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


LOADED_WHILE_TRAINING = """
import importlib, json, sys
from pathlib import Path
from sf.processes.spare import MODULES, NETWORKS
from sf.shared.ledger import Ledger
from tests.helpers.lab import make_lab, step_until

lab = make_lab(Path(sys.argv[1]), "Pendulum-v1")
for module in MODULES[NETWORKS]:
    importlib.import_module(module)
before = set(sys.modules)
step_until(lab.build_all(), lambda: Ledger.of(lab.slots, has_ended=False).learned > 0)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.more
def test_roles_load_nothing_large_when_they_work(tmp_path: Path) -> None:
    """What one loads after the fork it loads alone, and its first steps take that time."""
    line = [sys.executable, "-c", LOADED_WHILE_TRAINING, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT, timeout=100)
    late = json.loads(done.stdout.splitlines()[-1])
    assert len(late) < 5, late


FIRST_STEP = """
import importlib, sys
from sf.processes.spare import MODULES, NETWORKS
for name in MODULES[NETWORKS]:
    importlib.import_module(name)
from tests.helpers.updates import Update, act, learner_config, make_policy, train
update = Update(make_policy(), learner_config())
update.want_summary = True
batch, before = act(update.policy), set(sys.modules)
train(update, batch)
print(*set(sys.modules) - before)
"""


@pytest.mark.more
def test_a_learner_loads_nothing_in_its_first_step() -> None:
    command = [sys.executable, "-c", FIRST_STEP]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.split() == []
