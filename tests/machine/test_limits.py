"""What the system allows a run: threads, processes, open files, large ones."""

from __future__ import annotations

import os
import platform
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

import sf
from sf.errors import ResourceError
from sf.machine.cores import asked_s, usable_cores
from sf.machine.limits import (
    THREADS_OF_LIBRARIES,
    ensure_shared_memory,
    ensure_whole_words,
    one_thread_each,
    threads_beyond_cores,
)
from sf.run import preparation
from sf.run.preparation import prepare
from sf.run.topology import MOST_THREADS, learner_threads
from sf.spaces import ActionSpec, EnvInfo, LeafSpec
from tests.helpers.commands import (
    CARTPOLE,
    OPEN,
    ROOT,
    running,
    wait_for_first_step,
    wait_for_more,
    wait_for_new,
    wait_for_training,
)
from tests.helpers.lab import make_config


@pytest.mark.more
def test_fault_c5_c6_one_thread_computes_in_each_process(tmp_path: Path) -> None:
    """Beside it the learner and the inference worker have those that torch has started, which only wait."""
    with running(tmp_path, *CARTPOLE, "--eval_every_steps=100000") as command:
        wait_for_training(command)
        computing = "sf-rollout-0", "sf-learner-0", "sf-inference-0-0"
        command.wait_for(
            lambda: min(command.named(name)[0].cpu_times().user for name in computing) > 1.0, "a second of each"
        )
        threads = {one.cmdline()[0].split()[0]: one.num_threads() for one in command.named("sf-")}
        busy = {
            one.cmdline()[0].split()[0]: sum(1 for thread in one.threads() if thread.user_time > 0.2)
            for one in command.named("sf-")
        }
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(20).code == 143
    assert threads["sf-rollout-0"] == threads["sf-rollout-1"] == 1, threads
    assert threads["sf-fork-server"] == 1, "a fork copies only the thread that asks for it (C6)"
    assert max(threads.values()) <= 4, threads
    assert max(busy.values()) == 1, busy


def test_fault_c5_what_the_user_says_about_threads_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREADS_OF_LIBRARIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with one_thread_each():
        assert os.environ["OMP_NUM_THREADS"] == "3"
        assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
        assert "OPENBLAS_NUM_THREADS" not in os.environ, "else it would say one"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = dict(os.environ)
    with one_thread_each():
        assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == ("1", "ACTIVE")
        assert (os.environ["OPENBLAS_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]) == ("1", "2")
    assert dict(os.environ) == before


def test_fault_c5_more_threads_than_cores_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Threads that the user has asked for; a list has a number for each level of nesting."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    for name in THREADS_OF_LIBRARIES:
        monkeypatch.delenv(name, raising=False)
    assert list(threads_beyond_cores(3)) == []
    for all_cores in ("", "0", "all"):
        monkeypatch.setenv("MKL_NUM_THREADS", all_cores)
        assert [line.split()[1] for line in threads_beyond_cores(2)] == ["MKL_NUM_THREADS=4"]
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    assert list(threads_beyond_cores(8)) == []
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", " 2,16")
    assert list(threads_beyond_cores(2)) == []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert "threads in the rollout worker, 2 on 1 core. Set" in next(threads_beyond_cores(1))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    told = (
        "Warning: OPENBLAS_NUM_THREADS=2 allows numerical libraries 2 threads in each of 3 rollout workers, "
        "6 on 4 cores. Set it to 1."
    )
    assert list(threads_beyond_cores(3)) == [told]
    for serial_mode in (False, True):
        prepare(make_config(num_workers=3, train_dir=str(tmp_path), serial_mode=serial_mode))
        assert capsys.readouterr().out.count(told) == (not serial_mode)


def test_learners_have_several_threads_where_they_learn_from_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    vector, image = LeafSpec((84,), "float32"), LeafSpec((84, 84, 4), "uint8")
    only_vector, with_image = (
        EnvInfo("test", 1, leaves, ActionSpec.discrete(2)) for leaves in ({"a": vector}, {"a": vector, "b": image})
    )
    config = make_config()
    assert learner_threads(config, only_vector) == 1
    assert learner_threads(config, with_image) == 6
    assert learner_threads(make_config(num_policies=2), with_image) == 3
    assert learner_threads(make_config(num_policies=12), with_image) == 1
    assert learner_threads(make_config(serial_mode=True, async_rl=False), with_image) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert learner_threads(config, with_image) == MOST_THREADS
    assert learner_threads(make_config(num_policies=8), with_image) == 8


WITHOUT_PROCESSES = """
import os
import platform
import resource
import psutil
from sf.errors import ResourceError
from sf.machine.cores import asked_s
from sf.machine.limits import ensure_processes

ensure_processes(10**6)  # of somebody without a limit
if os.geteuid() == 0:
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    ensure_processes(10, 5)
except ResourceError as error:
    print(error)
"""


def test_fault_c4_too_few_processes_are_allowed() -> None:
    """Told beforehand to everybody but the superuser, whom the system does not limit."""
    if os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_NPROC)[0] != resource.RLIM_INFINITY:
        pytest.skip("this user has a limit already")
    line = [sys.executable, "-c", WITHOUT_PROCESSES]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": ROOT})
    assert re.match(r"The run needs about 25 threads for 10 processes, and of the 1 .* \(ulimit -u\)", done.stdout)


@pytest.mark.more
@pytest.mark.parametrize(("limit", "code"), [("ulimit -Sn 64", 0), ("ulimit -n 64", 5)])
def test_fault_c3_too_few_descriptors(tmp_path: Path, limit: str, code: int) -> None:
    """The soft limit is raised; a hard one is an error before any process of the run starts."""
    flags = " ".join((*CARTPOLE, "--num_policies=1", "--train_for_env_steps=2000"))
    line = f"{limit} && exec {sys.executable} -m sf.cli.train {flags}"
    finished = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert finished.returncode == code, finished.stderr
    assert (code == 0) == ("ulimit -n" not in finished.stderr)


@pytest.mark.parametrize(("limit_kib", "flags"), [(1, ""), (100, ""), (20_000, "--rollout=65536")])
def test_fault_c1_too_small_files_are_allowed(tmp_path: Path, limit_kib: int, flags: str) -> None:
    """What processes share is a file for the kernel."""
    line = f"ulimit -f {limit_kib} && exec {sys.executable} -m sf.cli.train {' '.join(OPEN)} {flags}"
    finished = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert finished.returncode == 5, finished.stderr
    told = r"ResourceError: The run needs \d+ MiB of shared memory in one piece, .* \(ulimit -f\)"
    assert re.search(told, finished.stderr)
    assert "Traceback" not in finished.stderr


@pytest.mark.more
@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_fault_c3_restarts_need_no_more_descriptors(tmp_path: Path, kills: int) -> None:
    """Workers whose successors have delivered: a synchronous run gets on with all of them only."""
    flags = "--async_rl=False", "--max_restarts=1000"
    with running(tmp_path, *CARTPOLE, *flags) as command:
        wait_for_first_step(command)
        supervisor = psutil.Process(command.process.pid)
        counts = []
        for _ in range(kills):
            victim = command.named("sf-rollout-0")[0]
            victim.kill()
            wait_for_new(command, "sf-rollout-0", victim.pid)
            wait_for_more(command)
            counts.append(supervisor.num_fds())
        assert max(counts[1:]) <= counts[0] + 1, counts
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(20).code == 143


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/", {}, 8),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "10000 100000"}, 1),
        ("0::/", {"cpu.max": "6400000 100000"}, 8),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/elsewhere/of/the/host", {"cpu.max": "300000 100000"}, 3),
        ("5:cpu,cpuacct:/c\n3:cpuset:/", {"cpu,cpuacct/c/cpu.cfs_quota_us": "250000"}, 3),
        ("5:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "100000"}, 1),
        ("2:cpu:/", {"cpu/cpu.cfs_quota_us": "-1"}, 8),
        ("3:memory:/\n0::/x", {"unified/x/cpu.max": "400000 100000"}, 4),
    ],
)
def test_the_cpu_quota_of_a_container_counts_as_its_cores(
    groups: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "cgroup").write_text(groups + "\n")
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        (path.parent / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path / "fs", tmp_path / "cgroup") == cores
    assert usable_cores(tmp_path / "fs", tmp_path / "none") == 8


def test_shared_memory_that_cannot_be_written_is_refused_before_processes_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_shared_memory()
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/dev/shm")
    with pytest.raises(ResourceError, match=r"need /dev/shm, which cannot be written here\..*--serial_mode=True"):
        prepare(make_config("CartPole-v1", train_dir=str(tmp_path)))


def test_words_of_32_bits_are_refused_before_processes_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process sees the words of a serial run."""
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    monkeypatch.setattr(preparation, "look_in_child", _no_process)
    with pytest.raises(ResourceError, match=r"needs a 64-bit Python, .* 32 bits .* Use --serial_mode=True"):
        prepare(make_config("CartPole-v1", train_dir=str(tmp_path)))
    monkeypatch.undo()
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    assert prepare(make_config("CartPole-v1", train_dir=str(tmp_path), serial_mode=True)).info.env_id == "CartPole-v1"


def test_plans_and_vector_envs_refuse_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan without remote workers does without."""
    from sf.plans import WorkerSet
    from tests.helpers.planned import TEN_STEPS, CountingPolicy

    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    with pytest.raises(ResourceError, match=r"has 32 bits .* Use num_workers=0"):
        WorkerSet(CountingPolicy, {"env": TEN_STEPS, "num_workers": 1})
    with WorkerSet(CountingPolicy, {"env": TEN_STEPS}) as workers:
        assert workers.local_worker().sample().count == 200
        with pytest.raises(ResourceError, match=r"has 32 bits .* Use num_workers=0"):
            workers.add_workers(1)
    with pytest.raises(ResourceError, match=r"has 32 bits .* Use gymnasium.vector.SyncVectorEnv"):
        sf.vector_env("CartPole-v1", 2)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "ppc64le", "riscv64"])
def test_processors_of_64_bits_are_accepted(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    ensure_whole_words()


def _no_process(*_: object, **__: object) -> NoReturn:
    raise AssertionError("a process was started")


def test_cores_that_processes_ask_for_are_those_they_had_and_those_they_waited_for(tmp_path: Path) -> None:
    for pid, text in {"1": "2000000000 500000000 7\n", "2": "1000000000 0 1\n", "3": "damaged"}.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "schedstat").write_text(text)
    assert asked_s([1, 2, 3, 4], tmp_path) == 3.5
    before = asked_s([os.getpid()])
    while asked_s([os.getpid()]) < before + 0.01:  # this process computes
        pass
