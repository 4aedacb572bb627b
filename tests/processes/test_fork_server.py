"""The fork server: what it forks is as any other child, and nothing outlives it."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import util
from pathlib import Path

import numpy as np
import psutil
import pytest

from sf.processes.child import Begun, Child
from sf.processes.fork_server import MOST_DESCRIPTORS, ForkServer
from sf.processes.process import ChildJob
from sf.processes.spare import MODULES, NETWORKS
from sf.shared.arena import Arena, Field
from sf.shared.doorbell import Doorbell
from tests.helpers.commands import ROOT
from tests.helpers.fork_servers import (
    Tell,
    exit_code,
    forked,
    message_of,
    pid_of,
    serving,
    sleep_for_ever,
    tell_family,
    wait_until,
    wait_until_ready,
)
from tests.helpers.starter import new_program


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


def test_child_that_its_server_has_reaped_before_it_is_watched_has_its_answer_and_its_exit_code(
    server: ForkServer,
) -> None:
    def begin(job: ChildJob) -> Begun:
        begun = server.begin(job)
        wait_until(lambda: not psutil.pid_exists(begun.pid))
        return begun

    child = Child("newborn", tell_family, simulators=server.simulators, leads_group=True, begin=begin)
    assert message_of(child)[0] == child.pid
    child.kill()
    assert exit_code(child) == 0


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


def test_no_other_user_finds_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that could send it a request would run code in the name of this user."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(MODULES, NETWORKS, ())
    with serving() as server:
        assert exit_code(forked(server, tell_family)) == 0
        assert list(tmp_path.iterdir()) == []
