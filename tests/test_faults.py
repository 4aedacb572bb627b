"""Processes that die, hang or are killed in whole runs: what is replaced, what ends, and that nothing is left."""

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
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from sf import children
from sf.children import Processes
from sf.errors import InternalError
from sf.signals import Signals
from sf.supervisor import train
from tests.commands import (
    EXPERIMENT,
    ROOT,
    Running,
    expect_exact_ledger,
    expect_no_shared_memory_but,
    fault_run,
    run,
    running,
    shared_memory,
    summary_of,
    version_of,
    wait_for_training,
)
from tests.fault_envs import SLEEPERS
from tests.lab import make_config

WITHOUT_NOHUP = "env", "--default-signal=HUP"
"""Also where nohup has started the tests."""
OPEN = ("--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=4", "--seed=1")
CARTPOLE = (*OPEN, "--policy_workers_per_policy=1")


def wait_for_more(command: Running) -> None:
    """Training on what is collected from now on: a hundred steps are more than wait to be learned."""
    before = version_of(command)
    command.wait_for(lambda: version_of(command) > before + 100, "more training")


def wait_for_new(command: Running, title: str, old: int) -> None:
    """Until somebody else has this name, and has done some work."""
    command.wait_for(lambda: [one for one in command.named(title) if one.pid != old], f"a new {title}")


@pytest.mark.parametrize(("role", "inference"), [("rollout-1", 1), ("inference-0-0", 1), ("rollout-1", 0)])
def test_fault_a1_a7_killed_worker_is_replaced(tmp_path: Path, role: str, inference: int) -> None:
    with running(tmp_path, *OPEN, f"--policy_workers_per_policy={inference}") as command:
        wait_for_training(command)
        victims = []
        for _ in range(2):
            command.wait_for(lambda: command.named(f"sf-{role}"), role)
            victim = command.named(f"sf-{role}")[0]
            wait_for_more(command)
            victim.kill()
            victims.append(victim.pid)
            wait_for_new(command, f"sf-{role}", victim.pid)
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    for number, pid in enumerate(victims, 1):
        assert f"{role} (pid {pid}) was killed by SIGKILL" in finished.out
        assert f"Restart {number} of {role}" in finished.out
    slots = expect_exact_ledger(tmp_path, finished)
    groups = 2 if inference else 1
    assert slots["discarded"]["worker_died"] <= 2 * groups, "each with one unfinished trajectory"
    assert role.startswith("rollout") or slots["discarded"]["worker_died"] == 0
    assert summary_of(tmp_path)["faults"]["faults/restarts"] == 2


@pytest.mark.parametrize("mode", ["--async_rl=False", pytest.param("--async_rl=True", marks=pytest.mark.slow)])
def test_fault_a5_all_rollout_workers_killed_together(tmp_path: Path, mode: str) -> None:
    """The learner waits for their successors, in synchronous mode for exactly the same number of trajectories."""
    with running(tmp_path, *CARTPOLE, mode) as command:
        wait_for_training(command)
        for _ in range(2):
            before = {process.pid for process in command.named("sf-rollout")}
            for process in command.named("sf-rollout"):
                process.kill()
            wait_for_two_others(command, before)
        wait_for_more(command)
        command.process.send_signal(signal.SIGINT)
        finished = command.finish(20)
    assert finished.code == 130
    assert "nan" not in finished.out.split("Restart", 1)[1].split("Time shares")[0]
    slots = expect_exact_ledger(tmp_path, finished)
    if mode == "--async_rl=False":
        assert slots["learned"] % 4 == 0, "one trajectory of each of the four groups makes a dataset"


def wait_for_two_others(command: Running, before: set[int]) -> None:
    def others() -> set[int]:
        return {process.pid for process in command.named("sf-rollout")} - before

    command.wait_for(lambda: len(others()) == 2, "new workers")


@pytest.mark.parametrize(
    ("order", "how", "inference"),
    [
        ("step-kill", "was killed by SIGKILL", 1),
        ("step-kill", "was killed by SIGKILL", 0),
        ("step-exit", "exited with code 0 without being told to", 1),
        ("step-sys_exit", "failed with SystemExit", 0),
        ("step-segfault", "was killed by SIGSEGV", 1),
        ("step-abort", "was killed by SIGABRT", 0),
        ("step-raise", "step() raised ValueError: the simulator is unwell", 1),
        ("reset-raise", "reset() raised ValueError: the simulator is unwell", 0),
        ("step-unpicklable", "step() raised Unpicklable", 1),
    ],
)
def test_fault_a15_b4_b5_b6_worker_that_ends_by_itself_is_replaced(
    tmp_path: Path, order: str, how: str, inference: int
) -> None:
    finished = run(tmp_path, *fault_run(tmp_path, order, inference=inference))
    assert finished.code == 0, finished.err
    assert how in finished.out
    assert finished.out.count("Restart 1 of rollout-") == 1
    if "raise" in order:
        assert "fault_envs.py" in finished.out, "the traceback of the environment is shown"
    expect_exact_ledger(tmp_path, finished)


@pytest.mark.parametrize(
    ("order", "inference"),
    [
        ("step-spin", 1),
        ("reset-hang", 1),
        ("step-stop", 1),
        ("step-spin", 0),
        ("step-ignore_sigterm", 1),
        pytest.param("step-hang", 1, marks=pytest.mark.slow),
    ],
)
def test_fault_a13_b1_b2_worker_that_hangs_is_killed_and_replaced(tmp_path: Path, order: str, inference: int) -> None:
    flags = fault_run(tmp_path, order, inference=inference)[:-1]
    limits = ("--env_step_timeout=1", "--env_reset_timeout=1")
    with running(tmp_path, *flags, *limits) as command:
        command.wait_for(lambda: list((tmp_path / "orders").glob("done-*")), "the fault")
        began = time.monotonic()
        command.wait_for_text("Restart 1 of rollout-")
        assert time.monotonic() - began < 1 + 5, "the deadline is 1 s; this machine may be busy"
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    call = order.split("-")[0]
    assert re.search(
        rf"rollout-. \(pid \d+\) took longer than 1 s to {call} environment \d \(--env_{call}", finished.out
    )
    if order in ("step-hang", "reset-hang", "step-ignore_sigterm"):
        assert "fault_envs.py" in finished.err, "the stacks are printed"
    expect_exact_ledger(tmp_path, finished)


def test_fault_b3_slow_but_legal(tmp_path: Path) -> None:
    """A reset that takes most of its time is nobody's fault, with a shorter limit for steps."""
    flags = fault_run(tmp_path, kwargs={"reset_s": 1.5})[:-1]
    limits = "--env_step_timeout=1", "--env_reset_timeout=20", "--train_for_seconds=4"
    finished = run(tmp_path, *flags, *limits)
    assert finished.code == 0, finished.err
    assert "Restart" not in finished.out


def test_fault_a6_worker_that_dies_in_init_again_and_again(tmp_path: Path) -> None:
    """The budget is spent with growing pauses; the cause is printed in full once."""
    flags = fault_run(tmp_path)[:-1]
    with running(tmp_path, *flags, "--max_restarts=3", "--async_rl=False") as command:
        wait_for_training(command)
        (tmp_path / "orders" / "init-always-raise").touch()
        command.named("sf-rollout-0")[0].kill()
        finished = command.finish(60)
    assert finished.code == 6
    assert "rollout-0 died more than 3 times within a minute" in finished.err
    assert "the simulator is unwell" in finished.err
    assert finished.out.count("Traceback") <= 1
    assert len([line for line in finished.lines if "Updated weights" not in line]) < 200
    expect_exact_ledger(tmp_path, finished)


def test_fault_a6_asynchronous_run_goes_on_with_fewer_workers(tmp_path: Path) -> None:
    flags = fault_run(tmp_path, num_workers=3)[:-1]
    with running(tmp_path, *flags, "--max_restarts=1") as command:
        wait_for_training(command)
        (tmp_path / "orders" / "init-always-raise").touch()
        command.named("sf-rollout-0")[0].kill()
        command.wait_for_text("is given up; the run goes on with 2 rollout workers")
        wait_for_more(command)
        for number in (1, 2):
            with contextlib.suppress(IndexError):
                command.named(f"sf-rollout-{number}")[0].kill()
        finished = command.finish(60)
    assert finished.code == 6
    expect_exact_ledger(tmp_path, finished)


def test_fault_b5_environment_that_cannot_be_made_fails_fast(tmp_path: Path) -> None:
    finished = run(tmp_path, *fault_run(tmp_path, "init-always-raise"))
    assert finished.code == 3
    assert "the simulator is unwell" in finished.err
    assert finished.seconds < 20


def test_fault_a9_watchdog_and_resource_tracker_are_not_needed(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        wait_for_training(command)
        helpers = [one for one in command.members() if not one.cmdline()[0].startswith("sf-")]
        assert helpers
        for helper in helpers:
            helper.kill()
        wait_for_more(command)
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(20).code == 143


END: dict[str, Callable[[Running], object]] = {
    "sigterm": lambda command: command.process.send_signal(signal.SIGTERM),
    "kill": lambda command: command.process.kill(),
    "killpg": lambda command: os.killpg(command.process.pid, signal.SIGKILL),
    "worker": lambda command: command.named("sf-rollout-0")[0].kill(),
}


@pytest.mark.parametrize("end", END)
def test_fault_a1_a10_a11_a14_simulators_end_with_their_worker(tmp_path: Path, end: str) -> None:
    """Programs, shells and forks, in the group of the worker and out of it. A fork hides no death of its parent."""
    shared_before = shared_memory()
    with running(tmp_path, *fault_run(tmp_path, num_workers=1, kwargs={"sleepers": True})[:-1]) as command:
        wait_for_training(command)
        (worker,) = command.named("sf-rollout-0")[:1]
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


def test_fault_a10_supervisor_killed_at_the_first_look(tmp_path: Path) -> None:
    """When there is nobody yet but the process that looks at the environment."""
    (tmp_path / "orders").mkdir()
    arguments = json.dumps({"sleepers": True, "reset_s": 1000})
    with running(tmp_path, "--env=tests.fault_envs:Fault-v0", f"--env_kwargs={arguments}") as command:
        root = psutil.Process(command.process.pid)
        command.wait_for(lambda: len(root.children(recursive=True)) >= 1 + SLEEPERS, "the sleepers")
        family = root.children(recursive=True)
        command.process.kill()
        command.process.wait(5)
        assert not left_of(family, 2)


def test_fault_b2_b3_what_keeps_a_worker_at_the_end_is_told_and_no_error(tmp_path: Path, monkeypatch: Any) -> None:
    """A thread that does not end, or a slow call of an environment."""
    finished = run(tmp_path, *fault_run(tmp_path, kwargs={"thread": True}))
    assert finished.code == 0, finished.err
    assert "did not stop" not in finished.out
    monkeypatch.setattr(children, "STOP_GRACE_S", 1.0)
    config = make_config(
        "tests.fault_envs:Fault-v0", env_kwargs='{"close_s": 1000}', train_dir=str(tmp_path), train_for_env_steps=2000
    )
    assert train(replace(config, run=replace(config.run, serial_mode=False))).code == 0


def shared_blocks(command: Running) -> int:
    """How many blocks of shared memory the supervisor maps."""
    lines = Path(f"/proc/{command.process.pid}/maps").read_text().splitlines()
    return len({line.split()[4] for line in lines if "memfd:sf" in line})


def test_fault_a8_learner_begins_again_from_its_checkpoint(tmp_path: Path) -> None:
    """Lost is what was learned since the last checkpoint; frames and versions go on from there."""
    with running(tmp_path, *CARTPOLE, "--save_every_sec=1", "--restart_learner=True") as command:
        command.wait_for(lambda: list((tmp_path / EXPERIMENT / "checkpoint_p0").glob("checkpoint_*")), "a checkpoint")
        before = {process.pid for process in command.named("sf-")} - {command.process.pid}
        victim, mapped = command.named("sf-learner-0")[0], shared_blocks(command)
        victim.kill()
        command.wait_for_text("The run begins again from its last checkpoint")
        wait_for_new(command, "sf-learner-0", victim.pid)
        command.wait_for(lambda: not (tmp_path / EXPERIMENT / "summary.json").exists(), "a run that has not ended")
        lines = len(command.out.splitlines())
        command.wait_for(lambda: "Saved " in "".join(command.out.splitlines()[lines:]), "a new checkpoint")
        same = before & {process.pid for process in command.named("sf-")}
        assert same <= {process.pid for process in command.named("sf-fork-server")}
        assert shared_blocks(command) == mapped, "the memory of the earlier life is given back"
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    frames = [int(found) for found in re.findall(r"Total num frames: (\d+)", finished.out)]
    saved = [int(found) for found in re.findall(r"checkpoint_(\d+)_\d+ \(periodic", finished.out)]
    assert saved == sorted(saved), "versions never go back"
    assert frames[-1] > 0
    assert "Settings that differ" not in finished.out, "it is the same start"
    expect_exact_ledger(tmp_path, finished)


def test_fault_a12_run_stops_when_its_parent_dies(tmp_path: Path) -> None:
    """In order, as after SIGHUP; with nohup it goes on."""
    for prefix in ("", "nohup "):
        directory = tmp_path / (prefix.strip() or "plain")
        directory.mkdir()
        flags = " ".join(CARTPOLE)
        line = f"{prefix}{sys.executable} -m sf.cli.train {flags} > out.txt 2>&1 & wait"
        shell = subprocess.Popen([*WITHOUT_NOHUP, "bash", "-c", line], cwd=directory, start_new_session=True)
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
                assert "What started this run is gone" in command.out
        finally:
            for member in command.members():
                with contextlib.suppress(psutil.Error):
                    member.kill()


def test_fault_a12_run_stops_when_its_parent_dies_while_it_starts(tmp_path: Path) -> None:
    flags = fault_run(tmp_path, num_workers=1, kwargs={"init_s": 2.0})[:-1]
    line = shlex.join([sys.executable, "-m", "sf.cli.train", *flags])
    shell = subprocess.Popen(
        [*WITHOUT_NOHUP, "bash", "-c", f"{line} > out.txt 2>&1 & wait"], cwd=tmp_path, start_new_session=True,
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
        assert "What started this run is gone" in command.out
        assert "policy_version" not in command.out
    finally:
        for member in command.members():
            with contextlib.suppress(psutil.Error):
                member.kill()


def test_fault_a17_child_that_cannot_be_killed_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "STOP_GRACE_S", 1.0)
    monkeypatch.setattr(children, "KILL_GRACE_S", 1.0)
    kill, stop = SpawnProcess.kill, Processes.stop
    monkeypatch.setattr(SpawnProcess, "kill", lambda self: None if self.name == "rollout-0" else kill(self))
    monkeypatch.setattr(os, "killpg", lambda group, number: None)
    arguments = json.dumps({"close_s": 1000})
    config = make_config(
        "tests.fault_envs:Fault-v0", env_kwargs=arguments, train_dir=str(tmp_path), train_for_env_steps=2000
    )
    config = replace(config, run=replace(config.run, serial_mode=False))
    left: list[psutil.Process] = []
    told_s: list[float] = []

    def stop_in_time(processes: Processes, signals: Signals) -> list[str]:
        told_s.append(time.monotonic())
        return stop(processes, signals)

    monkeypatch.setattr(Processes, "stop", stop_in_time)
    try:
        with pytest.raises(InternalError, match=r"rollout-0 \(pid \d+\) cannot be killed and is left to the kernel"):
            train(config)
        assert time.monotonic() - told_s[0] < children.STOP_GRACE_S + 5.0
        mine = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
        left = [one for one in mine if "sf-rollout" in "".join(one.cmdline())]
        assert len(left) == 1
        assert not [one for one in multiprocessing.active_children() if one.name == "rollout-0"]
    finally:
        for one in left:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)


@pytest.mark.parametrize(("limit", "code"), [("ulimit -Sn 40", 0), ("ulimit -n 40", 5)])
def test_fault_c3_too_few_descriptors(tmp_path: Path, limit: str, code: int) -> None:
    """The soft limit is raised; a hard one is an error before any process of the run starts."""
    flags = " ".join((*CARTPOLE, "--num_policies=1", "--train_for_env_steps=2000"))
    line = f"{limit} && exec {sys.executable} -m sf.cli.train {flags}"
    finished = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert finished.returncode == code, finished.stderr
    assert (code == 0) == ("ulimit -n" not in finished.stderr)


@pytest.mark.parametrize(("limit_kib", "flags"), [(100, ""), (20_000, "--rollout=65536")])
def test_fault_c1_too_small_files_are_allowed(tmp_path: Path, limit_kib: int, flags: str) -> None:
    """What processes share is a file for the kernel."""
    line = f"ulimit -f {limit_kib} && exec {sys.executable} -m sf.cli.train {' '.join(OPEN)} {flags}"
    finished = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert finished.returncode == 5, finished.stderr
    told = r"ResourceError: The run needs \d+ MiB of shared memory in one piece, .* \(ulimit -f\)"
    assert re.search(told, finished.stderr)
    assert "Traceback" not in finished.stderr


def test_fault_c3_restarts_need_no_more_descriptors(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE, "--max_restarts=100") as command:
        wait_for_training(command)
        supervisor = psutil.Process(command.process.pid)
        counts = []
        for _ in range(6):
            victim = command.named("sf-rollout-0")[0]
            victim.kill()
            wait_for_new(command, "sf-rollout-0", victim.pid)
            counts.append(supervisor.num_fds())
        assert max(counts[1:]) <= counts[0] + 1, counts
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(20).code == 143
