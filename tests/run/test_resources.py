"""What the machine does not give: processes, files, room on a disk, names, a clock that goes forward."""

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
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sf.errors import ExitCode, ResourceError
from sf.processes.child import Packed
from sf.processes.disposable import DisposableChild
from sf.processes.process import ChildJob
from sf.processes.simulators import Simulators
from sf.run.supervisor import train
from sf.storage.experiment import MARKER
from tests.environments import fault
from tests.helpers.commands import (
    CARTPOLE,
    EXPERIMENT,
    ROOT,
    command_of,
    newest_version,
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


def test_fault_d2_resume_points_of_serial_runs_need_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the periodic checkpoints, and not in the best one."""
    saver = make_lab(tmp_path, keep_checkpoints=2).build("learner-0").saver
    each = sum(tensor.numel() * tensor.element_size() for tensor in saver.update.state_dict().values())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4 * each + 3 * 10**6 - 1))
    with pytest.raises(ResourceError, match=r"need 2\.9|need 3"):
        saver.ensure_room(10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4 * each + 3 * 10**6))
    saver.ensure_room(10**6)
    config = make_config(train_dir=str(tmp_path / "serial"), serial_mode=True, train_for_env_steps=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=6 * each))
    with pytest.raises(ResourceError, match="Make room"):
        train(config)


@pytest.mark.more
@pytest.mark.parametrize("what", ["removed", "moved", "made anew"])
@pytest.mark.parametrize("serial", ["True", "False"])
def test_fault_d2_run_whose_directory_is_gone_ends(tmp_path: Path, what: str, serial: str) -> None:
    """It could save nothing any more, however long it went on."""
    with running(tmp_path, *CARTPOLE, f"--serial_mode={serial}", "--save_every_sec=1000") as command:
        command.wait_for_text("Fps is")
        directory = tmp_path / EXPERIMENT
        if what == "removed":
            shutil.rmtree(directory, ignore_errors=True)
        else:
            directory.rename(tmp_path / "moved")
        if what == "made anew":
            directory.mkdir()
        finished = command.finish(60)
    assert finished.code == ExitCode.CHECKPOINT
    assert "was removed while this run used it, or is another run's now" in finished.err
