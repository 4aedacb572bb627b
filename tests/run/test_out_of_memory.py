"""Memory that runs out: of the machine, a container, an accelerator, or a file system in memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sf.errors import ResourceError, SfError
from sf.machine import memory
from sf.machine.memory import MemoryKills
from sf.plugins import register_model
from sf.processes.failures import failure_of
from sf.run.supervisor import train
from sf.storage.checkpoint import load_newest
from tests.helpers.checkpoints import snapshot
from tests.helpers.commands import (
    CARTPOLE,
    ROOT,
    run,
)
from tests.helpers.lab import make_config


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


def test_errors_keep_their_codes() -> None:
    assert failure_of(MemoryError()).exit_code == ResourceError.exit_code
    assert failure_of(SfError("x")).exit_code == SfError.exit_code
