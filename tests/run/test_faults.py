"""Processes that die or hang in whole runs: what is replaced, what goes on, and what ends."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.helpers.commands import (
    CARTPOLE,
    EXPERIMENT,
    OPEN,
    ROOT,
    Running,
    command_of,
    expect_exact_ledger,
    fault_run,
    run,
    running,
    start_slowly,
    summary_of,
    wait_for_more,
    wait_for_new,
    wait_for_training,
    watchdogs,
)


@pytest.mark.more
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


@pytest.mark.more
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


def newborn(command: Running) -> psutil.Process:
    """Waits for one that has no name yet, but that of the server that has forked it."""
    (server,) = command.named("sf-env-server")
    found: list[psutil.Process] = []

    def look() -> bool:
        found[:] = [one for one in server.children() if command_of(one).startswith("sf-env-server")]
        return bool(found)

    command.wait_for(look, "a process that is being born")
    return found[0]


@pytest.mark.more
@pytest.mark.parametrize("fault", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_fault_a4_a13_newborn_that_never_reads_what_it_is_given(tmp_path: Path, fault: signal.Signals) -> None:
    """Which is more than fits into the pipe to it: nobody waits for a reader, and signals are heard."""
    start_slowly(tmp_path, 4.0)
    flags = fault_run(tmp_path, kwargs={"ballast": "x" * 100_000})[:-1]
    with running(tmp_path, *flags, python_path=f"{tmp_path}:{ROOT}") as command:
        wait_for_training(command)
        command.named("sf-rollout-0")[0].kill()
        successor = newborn(command)
        successor.send_signal(fault)
        if fault == signal.SIGKILL:
            command.wait_for_text(f"rollout-0 (pid {successor.pid}) was killed by SIGKILL")
        wait_for_more(command)
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(60)
    assert finished.code == 143, finished.err
    expect_exact_ledger(tmp_path, finished)


def wait_for_two_others(command: Running, before: set[int]) -> None:
    def others() -> set[int]:
        return {process.pid for process in command.named("sf-rollout")} - before

    command.wait_for(lambda: len(others()) == 2, "new workers")


ENDS = {
    "step-kill": "was killed by SIGKILL",
    "step-exit": "exited with code 0 without being told to",
    "step-sys_exit": "failed with SystemExit",
    "step-segfault": "was killed by SIGSEGV",
    "step-abort": "was killed by SIGABRT",
    "step-raise": "step() raised ValueError: the simulator is unwell",
    "reset-twice-raise": "reset() raised ValueError: the simulator is unwell",
    "step-unpicklable": "step() raised Unpicklable",
}
"""What environments are ordered to do, and what is said of it."""


def wait_for_more_text(command: Running, text: str, begin: int) -> str:
    """What the console has said from this place on, when this is among it."""
    command.wait_for(lambda: text in command.out[begin:], repr(text))
    return command.out[begin:]


@pytest.mark.more
def test_fault_b5_reset_that_raises_once_is_tried_again(tmp_path: Path) -> None:
    """By the same environment, which is told; nobody is replaced."""
    with running(tmp_path, *fault_run(tmp_path)[:-1]) as command:
        wait_for_training(command)
        (tmp_path / "orders" / "reset-raise").touch()
        command.wait_for(lambda: list((tmp_path / "orders").glob("done-*")), "the fault")
        wait_for_more(command)
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    told = r"environment \d, is reset once more \(error 1 .*: reset\(\) raised ValueError: the simulator is unwell"
    assert re.search(told, finished.out)
    assert "fault.py" in finished.out, "with its stack"
    assert summary_of(tmp_path)["faults"]["faults/restarts"] == 0
    assert expect_exact_ledger(tmp_path, finished)["discarded"]["worker_died"] == 0


@pytest.mark.more
@pytest.mark.parametrize("inference", [1, 0])
def test_fault_a15_b4_b5_b6_workers_that_end_by_themselves_are_replaced(tmp_path: Path, inference: int) -> None:
    """One after the other in one run, in which each end but the last is followed by another one."""
    with running(tmp_path, *fault_run(tmp_path, inference=inference)[:-1]) as command:
        wait_for_training(command)
        for order, how in ENDS.items():
            before = len(command.out)
            (tmp_path / "orders" / order).touch()
            said = wait_for_more_text(command, "Restart ", before)
            assert how in said
            if "raise" in order:
                assert "fault.py" in said, "the traceback of the environment is shown"
        command.wait_for(lambda: len(command.named("sf-rollout")) == 2, "the last successor")
        wait_for_more(command)
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    faults = summary_of(tmp_path)["faults"]
    assert faults["faults/restarts"] == len(ENDS)
    found = {end: faults[f"faults/restarts_{end}"] for end in ("signal", "exception", "hang", "memory", "exit")}
    assert found == {"signal": 3, "exception": 4, "hang": 0, "memory": 0, "exit": 1}
    expect_exact_ledger(tmp_path, finished)


@pytest.mark.more
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
    flags = fault_run(tmp_path, inference=inference)[:-1]
    limits = ("--env_step_timeout=1", "--env_reset_timeout=1")
    with running(tmp_path, *flags, *limits) as command:
        wait_for_training(command)
        (tmp_path / "orders" / order).touch()
        command.wait_for(lambda: list((tmp_path / "orders").glob("done-*")), "the fault")
        began = time.monotonic()
        (done,) = (tmp_path / "orders").glob("done-*")
        call, _, pid = order.split("-")[0], *done.name.rsplit("-", 1)
        what = rf"rollout-. \(pid {pid}\) took longer than 1 s to {call} environment \d \(--env_{call}_timeout\)"
        command.wait_for(lambda: re.search(rf"{what}, and was killed\. .*Restart \d of", command.out), "its end")
        assert time.monotonic() - began < 1 + 5, "the deadline is 1 s; this machine may be busy"
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    assert summary_of(tmp_path)["faults"]["faults/restarts_hang"] >= 1
    if order != "step-stop":
        assert re.search(r'fault\.py", line \d+ in obey', finished.err), "the stacks are printed"
    expect_exact_ledger(tmp_path, finished)


@pytest.mark.more
def test_fault_b3_slow_but_legal(tmp_path: Path) -> None:
    """A reset that takes most of its time is nobody's fault; steps have a shorter limit, and each reset has its own."""
    flags = fault_run(tmp_path, kwargs={"reset_s": 4.0})[:-1]
    limits = "--env_step_timeout=3", "--env_reset_timeout=7", "--train_for_seconds=10"
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


@pytest.mark.more
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


def test_fault_a4_b4_message_of_a_megabyte_is_told_in_short(tmp_path: Path) -> None:
    with running(tmp_path, *fault_run(tmp_path, "step-shout")[:-1]) as command:
        command.wait_for_text("Restart 1 of rollout-")
        said = command.out
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(20).code == 143
    assert re.search(r"\[\d,\d{3},\d{3} bytes are left out\]", said)
    assert len(said) < 100_000


@pytest.mark.more
def test_fault_a9_watchdog_and_resource_tracker_are_not_needed(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        wait_for_training(command)
        helpers = [one for one in command.members() if not one.cmdline()[0].startswith("sf-")]
        for kind in ("watchdog", "resource_tracker"):
            assert any(kind in command_of(one) for one in helpers), kind
        for helper in helpers:
            helper.kill()
        wait_for_more(command)
        command.wait_for(lambda: watchdogs(command), "another watchdog")
        (victim,) = command.named("sf-rollout-0")  # the start of its successor needs a tracker
        victim.kill()
        wait_for_new(command, "sf-rollout-0", victim.pid)
        wait_for_more(command)
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(20).code == 143


@pytest.mark.more
def test_fault_a13_b3_run_that_was_stopped_as_a_whole_blames_nobody(tmp_path: Path) -> None:
    """For longer than a step may take; whoever looks at the clock was stopped as well."""
    flags = fault_run(tmp_path)[:-1]
    with running(tmp_path, *flags, "--env_step_timeout=4") as command:
        wait_for_training(command)
        family = [psutil.Process(command.process.pid), *psutil.Process(command.process.pid).children(recursive=True)]
        for one in reversed(family):
            one.suspend()
        time.sleep(6)
        for one in family:
            one.resume()
        wait_for_more(command)
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143
    assert "Restart" not in finished.out


def shared_blocks(command: Running) -> int:
    """How many blocks of shared memory the supervisor maps."""
    lines = Path(f"/proc/{command.process.pid}/maps").read_text().splitlines()
    return len({line.split()[4] for line in lines if "memfd:sf" in line})


SAVED = r"Saved \S+/checkpoint_(\d+)_\d+ \(periodic"


@pytest.mark.more
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
        servers = [*command.named("sf-fork-server"), *command.named("sf-env-server")]
        assert same <= {process.pid for process in servers}
        assert shared_blocks(command) == mapped, "the memory of the earlier life is given back"
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    first, second = finished.out.split("The run begins again from its last checkpoint")
    before_it, after_it = ([int(found) for found in re.findall(SAVED, text)] for text in (first, second))
    resumed = re.search(r"Resumed from \S+/checkpoint_(\d+)_(\d+)", second)
    assert resumed
    version, frames = map(int, resumed.groups())
    assert version >= max(before_it, default=0), "the newest one"
    assert min(int(found) for found in re.findall(r"policy_version (\d+)", second)) >= version
    assert after_it == sorted(after_it)
    assert min(int(found) for found in re.findall(r"Total num frames: (\d+)", second)) >= frames
    assert "Settings that differ" not in finished.out, "it is the same start"
    expect_exact_ledger(tmp_path, finished)
