"""Whoever ends a run, and whenever: nothing of it is left, and what would keep it is told."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from sf.errors import InternalError, WorkerCrashed
from sf.processes.child import Child, spawned
from sf.processes.process import STOPPING
from sf.processes.servers import ForkServers
from sf.processes.signals import Signals
from sf.run import children
from sf.run.children import Processes
from sf.run.supervisor import train
from tests.environments.fault import SLEEPERS
from tests.helpers.commands import (
    CARTPOLE,
    ROOT,
    Running,
    command_of,
    expect_no_shared_memory_but,
    fault_run,
    run,
    running,
    shared_memory,
    summary_of,
    wait_for_first_step,
    wait_for_training,
    watchdogs,
)
from tests.helpers.lab import make_config
from tests.helpers.starter import LAUNCH


def kill_after_its_watchdog(command: Running) -> None:
    (watchdog,) = watchdogs(command)
    watchdog.kill()
    command.wait_for(lambda: [one for one in watchdogs(command) if one.pid != watchdog.pid], "another watchdog")
    time.sleep(0.2)  # it is told whom to watch as soon as it is there
    command.process.kill()


END: dict[str, Callable[[Running], object]] = {
    "sigterm": lambda command: command.process.send_signal(signal.SIGTERM),
    "kill": lambda command: command.process.kill(),
    "watchdog": kill_after_its_watchdog,
    "killpg": lambda command: os.killpg(command.process.pid, signal.SIGKILL),
    "worker": lambda command: command.named("sf-rollout-0")[0].kill(),
}


@pytest.mark.more
@pytest.mark.parametrize("end", END)
def test_fault_a1_a10_a11_a14_simulators_end_with_their_worker(tmp_path: Path, end: str) -> None:
    """Programs, shells and forks, in the group of the worker and out of it. A fork hides no death of its parent."""
    shared_before = shared_memory()
    with running(tmp_path, *fault_run(tmp_path, num_workers=1, kwargs={"sleepers": True})[:-1]) as command:
        wait_for_training(command)
        (worker,) = command.named("sf-rollout-0")
        command.wait_for(lambda: len(worker.children(recursive=True)) == 4 * SLEEPERS, "those of four environments")
        sleepers = worker.children(recursive=True)
        family = psutil.Process(command.process.pid).children(recursive=True)
        END[end](command)
        if end == "worker":
            assert not left_of(sleepers, 5)
            command.wait_for_text("Restart 1 of rollout-0")
            command.process.send_signal(signal.SIGTERM)
        elif end != "sigterm":
            command.process.wait(5)
            assert not left_of(family, 2)
        if end in ("sigterm", "worker"):
            assert command.finish(20).code == 143
            assert not left_of(family, 5)
    expect_no_shared_memory_but(shared_before)


def test_a_name_in_shared_memory_belongs_to_the_process_that_has_it_mapped() -> None:
    before = shared_memory()
    program = "import multiprocessing; lock = multiprocessing.get_context('spawn').Lock(); input(lock._semlock.name)"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        name = holder.stdout.read(len("/mp-01234567"))
        assert f"sem.{name[1:]}" in shared_memory() - before
        expect_no_shared_memory_but(before)
        holder.communicate("\n")
    left = Path("/dev/shm") / f"sf-test-{os.getpid()}"
    left.touch()
    try:
        with pytest.raises(AssertionError, match=left.name):
            expect_no_shared_memory_but(before, within_s=0.1)
    finally:
        left.unlink()


@pytest.mark.more
@pytest.mark.parametrize("mode", ["--serial_mode=True", "--serial_mode=False"])
def test_fault_a14_nothing_is_left_after_a_normal_end(tmp_path: Path, mode: str) -> None:
    """Neither of a first look at the environment, nor of a run with one process."""
    kwargs = {"sleepers": True, "forks": "False" in mode}
    flags = (*fault_run(tmp_path, num_workers=1, kwargs=kwargs)[:-1], mode, "--train_for_seconds=1")
    finished = run(tmp_path, *flags)
    assert finished.code == 0, finished.err
    assert not [one for one in psutil.process_iter() if lives_in(one, tmp_path)]


def left_of(processes: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Those that live still, after some time; whoever has adopted a dead one may take its time to notice."""
    found = []
    for process in psutil.wait_procs(processes, timeout=within_s)[1]:
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def lives_in(process: psutil.Process, directory: Path) -> bool:
    """Whether this is its working directory, which everything inherits that a run starts."""
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == directory
    return False


@pytest.mark.alone
def test_fault_a10_killed_supervisor_leaves_nobody(tmp_path: Path) -> None:
    """After a second, of those that environments have started neither, wherever they have gone."""
    with running(tmp_path, *fault_run(tmp_path, kwargs={"sleepers": True})[:-1]) as command:
        wait_for_first_step(command)
        workers = command.named("sf-rollout")
        for worker in workers:
            command.wait_for(partial(has_sleepers, worker, 4 * SLEEPERS), "those of four environments")
        own, family = command.named("sf-"), psutil.Process(command.process.pid).children(recursive=True)
        command.process.kill()
        command.process.wait()
        assert not left_of(own, 1.0)
        assert not left_of(family, 1.0)
        command.expect_nobody(1.0)


def has_sleepers(worker: psutil.Process, number: int) -> bool:
    return len(worker.children(recursive=True)) == number


def test_fault_a10_supervisor_killed_at_the_first_look(tmp_path: Path) -> None:
    """When there is nobody yet but the process that looks at the environment."""
    (tmp_path / "orders").mkdir()
    arguments = json.dumps({"orders": str(tmp_path / "orders"), "sleepers": True, "reset_s": 1000})
    with running(tmp_path, "--env=tests.environments.fault:Fault-v0", f"--env_kwargs={arguments}") as command:
        root = psutil.Process(command.process.pid)
        command.wait_for(lambda: list((tmp_path / "orders").glob("resets-*")), "the first reset")
        (reset,) = (tmp_path / "orders").glob("resets-*")
        looking = psutil.Process(int(reset.name.split("-")[1]))
        command.wait_for(lambda: len(looking.children(recursive=True)) == SLEEPERS, "the sleepers")
        family = root.children(recursive=True)
        assert {looking, *looking.children(recursive=True)} <= set(family)
        command.process.kill()
        command.process.wait(5)
        assert not left_of(family, 2)


@pytest.mark.more
def test_fault_b1_b2_b3_what_keeps_a_worker_at_the_end_is_told_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A thread that does not end, or a slow call of an environment, whose stack is shown."""
    finished = run(tmp_path, *fault_run(tmp_path, kwargs={"thread": True}))
    assert finished.code == 0, finished.err
    assert "did not stop" not in finished.out
    monkeypatch.setattr(children, "STOP_GRACE_S", 1.0)
    monkeypatch.setattr(Processes, "stop", after_the_learner(Processes.stop))
    config = make_config(
        "tests.environments.fault:Fault-v0",
        env_kwargs='{"close_s": 1000}',
        train_dir=str(tmp_path),
        train_for_env_steps=2000,
    )
    assert train(replace(config, run=replace(config.run, serial_mode=False))).code == 0
    told = capfd.readouterr()
    assert re.search(r"rollout-0 \(pid \d+\) did not stop\. Its stacks follow\.", told.out)
    assert re.search(r'fault\.py", line \d+ in close', told.err)
    assert "did not stop and was killed. Nothing that was learned is lost." in told.out


Stop = Callable[[Processes, Signals], list[str]]


def after_the_learner(stop: Stop) -> Stop:
    """The same, once the learner has had all the time that it needs to end."""

    def stop_late(processes: Processes, signals: Signals) -> list[str]:
        processes.shared.run_state[0] = STOPPING
        for doorbell in processes.shared.doorbells:
            doorbell.ring()
        assert all(child.has_ended(60.0) for child in processes.children if child.name.startswith("learner"))
        return stop(processes, signals)

    return stop_late


@pytest.mark.more
def test_fault_a12_run_stops_when_its_parent_dies(tmp_path: Path) -> None:
    """In order, as after SIGHUP; with nohup it goes on."""
    for prefix in ("", "nohup "):
        directory = tmp_path / (prefix.strip() or "plain")
        directory.mkdir()
        flags = " ".join(CARTPOLE)
        line = f"{prefix}{sys.executable} -m sf.cli.train {flags} > out.txt 2>&1 & wait"
        shell = subprocess.Popen([*LAUNCH, "bash", "-c", line], cwd=directory, start_new_session=True)
        command = Running(shell, directory / "out.txt", directory / "out.txt")
        try:
            while not (directory / "out.txt").exists():
                time.sleep(0.01)
            wait_for_training(command)
            shell.kill()
            shell.wait()
            if prefix:
                time.sleep(2)
                assert command.named("sf-train"), "the run should go on"
            else:
                command.expect_nobody(10)
                assert summary_of(directory)["exit_code"] == 143
                assert "The process that started this run is gone" in command.out
        finally:
            for member in command.members():
                with contextlib.suppress(psutil.Error):
                    member.kill()


@pytest.mark.more
def test_fault_a12_run_stops_when_its_parent_dies_while_it_starts(tmp_path: Path) -> None:
    flags = fault_run(tmp_path, num_workers=1, kwargs={"init_s": 2.0})[:-1]
    line = shlex.join([sys.executable, "-m", "sf.cli.train", *flags])
    shell = subprocess.Popen(
        [*LAUNCH, "bash", "-c", f"{line} > out.txt 2>&1 & wait"], cwd=tmp_path, start_new_session=True,
        env=os.environ | {"PYTHONPATH": ROOT},
    )  # fmt: skip
    command = Running(shell, tmp_path / "out.txt", tmp_path / "out.txt")
    try:
        deadline = time.monotonic() + 60
        while len(command.members()) < 5:  # the shell, the command, and what it has started for a first look
            assert time.monotonic() < deadline, command.members()
            time.sleep(0.02)
        shell.kill()
        shell.wait()
        command.expect_nobody(60)
        assert "The process that started this run is gone" in command.out
        assert "policy_version" not in command.out
    finally:
        for member in command.members():
            with contextlib.suppress(psutil.Error):
                member.kill()


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[psutil.Process]]]:
    """Has nothing kill rollout-0, as if the kernel did not let go of it; gives those of this name that live."""
    kill = Child.kill
    monkeypatch.setattr(children, "STOP_GRACE_S", 1.0)

    def of_this_name() -> list[psutil.Process]:
        mine = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
        return [one for one in mine if command_of(one).startswith("sf-rollout-0")]

    with monkeypatch.context() as patched:
        # A program of its own: a fork ends with its server, although nothing has killed it.
        patched.setattr(ForkServers, "may_begin_environments", True)
        patched.setattr(ForkServers, "begin_environments", lambda _, job: spawned(job))
        patched.setattr(Child, "kill", lambda self: None if self.name == "rollout-0" else kill(self))
        patched.setattr(os, "killpg", lambda group, number: None)
        patched.setattr(psutil.Process, "kill", lambda self: None)
        yield of_this_name
    for one in of_this_name():
        one.kill()
        os.waitpid(one.pid, 0)


@pytest.mark.alone
def test_fault_a17_child_that_cannot_be_killed_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unkillable: Callable[[], list[psutil.Process]]
) -> None:
    stop = Processes.stop
    arguments = json.dumps({"close_s": 1000})
    config = make_config(
        "tests.environments.fault:Fault-v0",
        env_kwargs=arguments,
        train_dir=str(tmp_path),
        train_for_env_steps=2000,
    )
    config = replace(config, run=replace(config.run, serial_mode=False))
    told_s: list[float] = []

    def stop_in_time(processes: Processes, signals: Signals) -> list[str]:
        told_s.append(time.monotonic())
        return stop(processes, signals)

    monkeypatch.setattr(Processes, "stop", stop_in_time)
    with pytest.raises(InternalError, match=r"rollout-0 \(pid \d+\) cannot be killed and is left to the kernel"):
        train(config)
    assert time.monotonic() - told_s[0] < children.STOP_GRACE_S + 5.0
    assert len(unkillable()) == 1
    assert not [one for one in multiprocessing.active_children() if one.name == "rollout-0"]


@pytest.mark.more
def test_fault_a17_b1_hang_that_cannot_be_killed_ends_the_run(
    tmp_path: Path, unkillable: Callable[[], list[psutil.Process]]
) -> None:
    """Nobody can take its place, since it may write into shared memory when the kernel lets go of it."""
    (tmp_path / "step-ignore_sigterm").touch()
    arguments = json.dumps({"orders": str(tmp_path), "step_s": 0.001})
    config = make_config(
        "tests.environments.fault:Fault-v0",
        env_kwargs=arguments,
        train_dir=str(tmp_path / "runs"),
        env_step_timeout=1.0,
    )
    config = replace(config, run=replace(config.run, serial_mode=False))
    with pytest.raises(WorkerCrashed, match=r"rollout-0 \(pid \d+\) hangs and cannot be killed"):
        train(config)
    assert len(unkillable()) == 1, "no successor"
