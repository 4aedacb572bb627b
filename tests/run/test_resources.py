"""What the machine does not give: memory, processes, threads, names, a clock that goes forward."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from sf.errors import ResourceError, SfError
from sf.machine import memory
from sf.machine.memory import MemoryKills
from sf.plugins import register_model
from sf.processes.child import Packed
from sf.processes.disposable import DisposableChild
from sf.processes.failures import failure_of
from sf.processes.process import ChildJob
from sf.processes.simulators import Simulators
from sf.run.supervisor import train
from sf.storage.checkpoint import load_newest
from sf.storage.experiment import MARKER
from tests.environments import fault
from tests.helpers.checkpoints import snapshot
from tests.helpers.commands import (
    CARTPOLE,
    EXPERIMENT,
    ROOT,
    command_of,
    newest_version,
    run,
    running,
    summary_of,
    version_of,
    wait_for_more,
    wait_for_saved_steps,
    wait_for_training,
)
from tests.helpers.lab import make_config, make_lab


@dataclass
class Refusing:
    """The kernel has nothing left for the n-th process of a name that is started."""

    name: str
    number: int
    names: list[str] = field(default_factory=list)

    def note(self, name: str) -> None:
        self.names.append("first look" if name.startswith("A first look") else name)
        if self.names[-1] == self.name and self.names.count(self.name) == self.number:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pack, watchdog = Packed.__init__, Simulators._new_watchdog

        def refusing_pack(packed: Packed, job: ChildJob, *arguments: Any, **flags: Any) -> None:
            self.note(job.name)
            pack(packed, job, *arguments, **flags)

        def refusing_watchdog(simulators: Simulators) -> Any:
            self.note("watchdog")
            return watchdog(simulators)

        monkeypatch.setattr(Packed, "__init__", refusing_pack)
        monkeypatch.setattr(Simulators, "_new_watchdog", refusing_watchdog)


def processes_of_runs() -> list[str]:
    """Command lines of what this process has started for runs and what lives."""
    lines = [command_of(one) for one in psutil.Process().children(recursive=True)]
    return [line for line in lines if re.match(r"sf-|.*(watchdog\.py|spawn_main)", line)]


@pytest.mark.more
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("watchdog", 1), ("fork-server", 1), ("first look", 1), ("learner-0", 1), ("inference-0-0", 1),
        ("rollout-0", 1), ("rollout-0", 2),
    ],
)  # fmt: skip
def test_fault_c4_no_more_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """The kernel refuses one: everything that has been started ends, and a run that had begun saves."""
    refusing = Refusing(name, number)
    refusing.patch(monkeypatch)
    (tmp_path / "step-kill").touch()
    arguments = json.dumps({"orders": str(tmp_path), "step_s": 0.001})
    config = make_config("tests.environments.fault:Fault-v0", env_kwargs=arguments, train_dir=str(tmp_path / "runs"))
    config = replace(config, run=replace(config.run, serial_mode=False))
    with pytest.raises(ResourceError, match=r"no more files, processes or memory.*ulimit"):
        train(config)
    assert refusing.names.count(name) == number
    assert processes_of_runs() == []
    assert number == 1 or list((tmp_path / "runs").rglob("checkpoint_0*")), "the run had begun"


def test_fault_c4_evaluation_of_its_own_too(monkeypatch: pytest.MonkeyPatch) -> None:
    Refusing("eval-1", 1).patch(monkeypatch)
    with pytest.raises(ResourceError, match=r"no more files, processes or memory.*ulimit"):
        DisposableChild("eval-1", os.getpid)
    assert processes_of_runs() == []


@pytest.mark.more
def test_fault_c6_processes_are_never_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the program that calls sf has chosen to fork."""
    monkeypatch.setattr(fault, "is_forked", True)
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    try:
        arguments = json.dumps({"refuse_fork": True})
        config = make_config(
            "tests.environments.fault:Fault-v0",
            env_kwargs=arguments,
            train_dir=str(tmp_path),
            train_for_env_steps=500,
        )
        assert train(replace(config, run=replace(config.run, serial_mode=False))).code == 0
    finally:
        multiprocessing.set_start_method(before, force=True)


class Greedy(torch.nn.Module):
    """An encoder that wants 32 TiB as soon as it sees a batch of the learner."""

    def __init__(self, shapes: Any, config: Any) -> None:
        super().__init__()
        ((self.name, (size,)),) = shapes.items()
        self.linear = torch.nn.Linear(size, 8)

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        if len(observations[self.name]) >= 64:
            torch.empty(2**45)
        features: torch.Tensor = self.linear(observations[self.name])
        return features


@pytest.mark.more
def test_fault_c7_out_of_memory_says_so_and_earlier_checkpoints_remain(tmp_path: Path) -> None:
    register_model("test/Greedy", Greedy)
    small = make_config(
        encoder="test/Greedy", train_dir=str(tmp_path), num_envs_per_worker=2, rollout=8, batch_size=16,
        train_for_env_steps=64,
    )  # fmt: skip
    small = replace(small, run=replace(small.run, serial_mode=False))
    assert train(small).code == 0
    (saved,) = tmp_path.rglob("checkpoint_0*")
    before = snapshot(saved)
    large = replace(
        small,
        run=replace(small.run, train_for_env_steps=10_000),
        rollout=replace(small.rollout, num_envs_per_worker=8),
        learner=replace(small.learner, batch_size=64),
    )
    with pytest.raises(ResourceError, match=r"(?s)learner-0.*tried to allocate 140737488355328 bytes.*--batch_size"):
        train(large)
    assert snapshot(saved) == before
    assert load_newest(saved.parent) is not None


def test_fault_c7_accelerators_too() -> None:
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`."),
    ):
        failure = failure_of(error)
        assert (failure.exit_code, failure.is_expected) == (5, True)
    assert failure_of(RuntimeError("mat1 and mat2 shapes cannot be multiplied")).exit_code == 7


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "CUDA error: no CUDA-capable device is detected",
        "CUDA error: unknown error\nCUDA kernel errors might be reported asynchronously",
    ],
)
def test_fault_c7_accelerator_that_is_lost(text: str) -> None:
    """As torch tells it; an assertion that fails on the device is a fault of a program."""
    for error in (RuntimeError(text), torch.AcceleratorError(text)):
        failure = failure_of(error)
        assert (failure.exit_code, failure.kind, failure.is_expected) == (5, "DeviceLost", True)
        assert "nvidia-smi" in failure.message
    assert failure_of(RuntimeError("CUDA error: device-side assert triggered")).exit_code == 7
    assert failure_of(RuntimeError("an unknown error of a simulator")).exit_code == 7


JUMPING_CLOCK = """
import os
import random
import time

real, dice = time.time, random.Random(1)
time.time = lambda: real() + dice.choice((-3600.0, 0.0, 3600.0))
tell = lambda: print("This clock jumps.", flush=True)
tell()
os.register_at_fork(after_in_child=tell)
"""


@pytest.mark.more
def test_fault_c8_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every process of the run; only the stamps of the log and of the curves tell this time."""
    (tmp_path / "sitecustomize.py").write_text(JUMPING_CLOCK)
    limits = "--env_step_timeout=30", "--env_reset_timeout=30", "--save_every_sec=1", "--train_for_seconds=4"
    line = [sys.executable, "-m", "sf.cli.train", *CARTPOLE, *limits]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("This clock jumps.") >= 5, "in every process"
    assert "Restart" not in done.stdout
    assert done.stdout.count("(periodic") >= 2


@pytest.mark.alone
def test_fault_c9_c10_nothing_has_a_name(tmp_path: Path) -> None:
    """Neither what an earlier crash has left is in the way, nor can anybody remove what this run uses."""
    junk = [Path("/dev/shm") / f"{name}_{uuid.uuid4().hex}" for name in ("sf", "psm", "sem.mp", "torch_1")]
    lock = tmp_path / EXPERIMENT / MARKER
    lock.parent.mkdir(parents=True)
    lock.write_text(f"pid {os.getpid()} on a machine that is off, started 2020-01-01T00:00:00\n")
    try:
        for file in junk:
            file.write_text("of an earlier crash")
        with running(tmp_path, *CARTPOLE) as command:
            wait_for_training(command)
            mapped = {
                line.split(maxsplit=5)[5] for one in command.members() for line in maps_of(one) if "/dev/shm" in line
            }
            assert all(name.endswith("(deleted)") for name in mapped), mapped
            assert not [one for one in command.members() if listens(one)], "a port is open"
            command.process.send_signal(signal.SIGTERM)
            assert command.finish(20).code == 143
        assert all(file.read_text() == "of an earlier crash" for file in junk)
    finally:
        for file in junk:
            file.unlink(missing_ok=True)


def maps_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    return []


def listens(process: psutil.Process) -> bool:
    """Whether it waits for connections that could come from elsewhere (row H7: there is nothing to connect to)."""
    with contextlib.suppress(psutil.Error):
        return any(one.status == psutil.CONN_LISTEN for one in process.net_connections(kind="inet"))
    return False


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory."""
    group = Path(f"/sys/fs/cgroup/memory/sf-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield group
    finally:
        while pids := (group / "cgroup.procs").read_text().split():  # a process leaves it a moment after its end
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.02)
        _remove(group)


def _remove(group: Path, attempts: int = 100) -> None:
    """Busy for a moment after its last process has left."""
    for attempt in range(attempts):
        try:
            group.rmdir()
        except OSError:
            if attempt == attempts - 1:
                raise
            time.sleep(0.05)
        else:
            return


@pytest.mark.more
def test_fault_c1_memory_of_a_container_is_what_counts(tmp_path: Path, small_group: Path) -> None:
    """Where the machine has more: refused, and not killed."""
    (small_group / "memory.limit_in_bytes").write_text(str(600 * 2**20))
    flags = "--env=CartPole-v1 --num_workers=2 --num_envs_per_worker=512 --rollout=4096"
    line = f"echo $$ > {small_group}/cgroup.procs && exec {sys.executable} -m sf.cli.train {flags}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 5, done.stderr
    assert re.search(r"Shared memory needs [\d,]+ MiB, .* and the container has [\d,]+ MiB left\.", done.stderr)


@pytest.mark.more
def test_fault_c2_others_fill_the_file_system_of_shared_memory(tmp_path: Path) -> None:
    """What a run shares has no place there that others could take, before it starts or later."""
    own_view = ["unshare", "--mount", "bash", "-c"]
    small = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    try:
        subprocess.run([*own_view, small], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    fill = "head -c 1M /dev/zero > /dev/shm/full && ! bash -c 'echo > /dev/shm/more' 2> /dev/null"
    train = f"exec {sys.executable} -m sf.cli.train {' '.join(CARTPOLE)} --train_for_env_steps=5000"
    command = [*own_view, f"{small} && {fill} && {train}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"Collected \{0: [5-9]\d{3}\}", done.stdout)


@pytest.mark.slow
def test_fault_a16_killed_by_the_kernel_for_its_memory(tmp_path: Path, small_group: Path) -> None:
    """Only the environments live in the small group; each successor dies of the same."""
    (small_group / "memory.limit_in_bytes").write_text(str(200 * 2**20))
    (tmp_path / "step-always-fill").touch()
    arguments = json.dumps({"orders": str(tmp_path), "cgroup": str(small_group)})
    few = "--num_workers=1", "--num_envs_per_worker=4", "--max_restarts=2", "--updates=fast"
    finished = run(tmp_path, "--env=tests.environments.fault:Fault-v0", f"--env_kwargs={arguments}", *few)
    assert finished.code == 5, finished.out
    killed = [line for line in finished.out.splitlines() if "as the kernel does when memory runs out" in line]
    assert ["Restart" in line for line in killed] == [True, True, False], "and the last line says why the run has ended"
    assert "as the kernel does when memory runs out" in finished.err


def test_fault_a16_kills_elsewhere_on_the_machine_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel counts them for a control group, and those below it; else all are counted."""
    monkeypatch.setattr(memory, "_own_group", lambda controller, root: None if controller else tmp_path)
    events = "low 0\nhigh 7\nmax 3\noom {0}\noom_kill {0}\noom_group_kill 0\n"
    (tmp_path / "memory.events").write_text(events.format(4))
    kills = MemoryKills()
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert not kills.were_just_now()
    (tmp_path / "memory.events").write_text(events.format(5))
    assert kills.were_just_now()
    (tmp_path / "memory.events").unlink()
    of_machine = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.M)
    assert memory._count_of_memory_kills() == int(of_machine[1] if of_machine else 0)


@pytest.mark.slow
def test_fault_b19_environments_that_leak_are_replaced(tmp_path: Path, small_group: Path) -> None:
    """The whole run has little memory; the kernel takes it back from the workers, and the learner notices nothing."""
    (small_group / "memory.limit_in_bytes").write_text(str(1200 * 2**20))
    flags = "--env=tests.run.test_strange_envs:Leaking-v0", *CARTPOLE[1:], "--max_restarts=1000"
    line = f"echo $$ > {small_group}/cgroup.procs && exec {sys.executable} -m sf.cli.train {' '.join(flags)}"
    line += " --train_for_seconds=20"
    environment = os.environ | {"PYTHONPATH": ROOT}
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    killed = re.findall(r"(\S+) \(pid \d+\) was killed by SIGKILL, as the kernel does", done.stdout)
    assert len(killed) >= 2
    assert all(name.startswith("rollout-") for name in killed)


@pytest.mark.more
def test_fault_b19_environments_that_leak_files_are_replaced(tmp_path: Path) -> None:
    """A worker that can open nothing any more makes way for a successor, and the learner notices nothing."""
    arguments = json.dumps({"megabytes": 0, "files": 1})
    flags = "--env=tests.run.test_strange_envs:Leaking-v0", f"--env_kwargs={arguments}", *CARTPOLE[1:], "--rollout=8"
    line = [sys.executable, "-m", "sf.cli.train", *flags, "--max_restarts=1000", "--train_for_env_steps=2000"]
    limited = ["bash", "-c", 'ulimit -n 300 && exec "$@"', "bash", *line]
    environment = os.environ | {"PYTHONPATH": ROOT}
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr  # the books balance, then
    causes = re.findall(r"(.*) Unfinished trajectories .* discarded: \d+\. Restart \d+ of rollout", done.stdout)
    assert len(causes) >= 2
    assert all("Too many open files: '/dev/null'." in cause for cause in causes)


def test_fault_d2_disk_without_room_for_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ResourceError, match=r"which has 0\.0\d+ MiB left\. Make room, .*--keep_checkpoints"):
        make_lab(tmp_path).build("learner-0")


@pytest.mark.more
def test_fault_d2_disk_that_is_full_for_a_while_costs_no_training(tmp_path: Path) -> None:
    """A limit on the size of files does to the learner what a full disk does to everybody."""
    with running(tmp_path, *CARTPOLE, "--save_every_sec=1") as command:
        wait_for_saved_steps(command)
        (learner,) = command.named("sf-learner-0")
        limit = learner.rlimit(psutil.RLIMIT_FSIZE)
        learner.rlimit(psutil.RLIMIT_FSIZE, (100, limit[1]))
        command.wait_for_text("was not written")
        during = version_of(command)
        assert 0 < newest_version(tmp_path) <= during, "the earlier one is whole"
        wait_for_more(command)
        learner.rlimit(psutil.RLIMIT_FSIZE, limit)
        command.wait_for(lambda: newest_version(tmp_path) > during, "a checkpoint that was made when there was room")
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    assert summary_of(tmp_path)["faults"]["faults/failed_saves"] >= 1
    assert "Restart" not in finished.out


def test_fault_d2_checkpoints_that_are_there_need_no_more_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on has two, the best one, and one that is being written."""
    saver = make_lab(tmp_path, keep_checkpoints=2).build("learner-0").saver
    each = sum(tensor.numel() * tensor.element_size() for tensor in saver.update.state_dict().values())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1.5 * each))
    for name in ("checkpoint_000000001_64", "checkpoint_000000002_128"):
        with pytest.raises(ResourceError, match="need"):
            saver.ensure_room()
        (saver.directory / name).mkdir()
    with pytest.raises(ResourceError, match="need"):
        saver.ensure_room()
    (saver.directory / "best").mkdir()
    saver.ensure_room()


def test_errors_keep_their_codes() -> None:
    assert failure_of(MemoryError()).exit_code == ResourceError.exit_code
    assert failure_of(SfError("x")).exit_code == SfError.exit_code
