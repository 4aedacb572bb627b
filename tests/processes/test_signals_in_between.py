"""Signals while a run starts, replaces a process or writes a checkpoint: none is lost (row E4)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sf.processes.signals import STOP_SIGNALS
from sf.run.preparation import prepare
from sf.run.supervisor import train_prepared
from tests.helpers.commands import (
    CARTPOLE,
    EXPERIMENT,
    expect_exact_ledger,
    fault_run,
    newest_version,
    run,
    running,
    wait_for_first_step,
)
from tests.helpers.lab import make_config


@pytest.mark.parametrize("delay_s", [0.0, 0.3, 1.0])
def test_fault_e4_signal_during_start_up_leaves_no_pile_of_tracebacks(tmp_path: Path, delay_s: float) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        command.wait_for(lambda: command.named("sf-train"), "the first process")
        time.sleep(delay_s)
        for process in command.members():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGINT)
        finished = command.finish(20)
    assert finished.code == 130
    assert "Traceback" not in finished.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_fault_e1_e4_signal_at_the_first_look(tmp_path: Path, number: int, code: int) -> None:
    """Also when the terminal is closed; nothing was begun, so that nothing is there."""
    flags = fault_run(tmp_path, kwargs={"reset_s": 1000})
    with running(tmp_path, *flags) as command:
        command.wait_for(lambda: list((tmp_path / "orders").glob("resets-*")), "the first look")
        command.process.send_signal(number)
        finished = command.finish(20)
    assert finished.code == code
    assert "Traceback" not in finished.err
    assert not (tmp_path / "train_dir").exists()


@pytest.mark.more
@pytest.mark.parametrize("victim", ["sf-learner-0", "sf-rollout-0", "sf-inference-0-0"])
def test_fault_e4_signal_while_somebody_is_replaced(tmp_path: Path, victim: str) -> None:
    """Whatever the successor does at that moment: it is not there yet, loads, or begins."""
    flags = *CARTPOLE, "--save_every_sec=1", "--restart_learner=True"
    with running(tmp_path, *flags) as command:
        command.wait_for_text("(periodic")
        before = newest_version(tmp_path)
        command.named(victim)[0].kill()
        command.wait_for_text("The run begins again" if "learner" in victim else f"Restart 1 of {victim[3:]}")
        command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == 143, finished.err
    assert "Traceback" not in finished.err
    assert newest_version(tmp_path) >= before


def test_fault_e4_signal_that_was_lost_while_preparing_ends_the_run(tmp_path: Path) -> None:
    """An exception in a destructor goes nowhere; the signal behind it is remembered."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    config = make_config(train_dir=str(tmp_path))
    try:
        prepared = prepare(replace(config, run=replace(config.run, serial_mode=True)))
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert train_prepared(prepared).code == 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


LOST_IN_DESTRUCTOR = """
import signal
from sf.processes.signals import early_signals

class Dying:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

received = early_signals()
Dying()
print(received)
"""


def test_fault_e4_signal_that_was_lost_while_preparing_leaves_no_traceback() -> None:
    result = subprocess.run([sys.executable, "-c", LOST_IN_DESTRUCTOR], capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("[2]\n", "")


def test_fault_e4_signal_in_generated_code_ends_with_the_exit_code(tmp_path: Path) -> None:
    """Python notes a KeyboardInterrupt that leaves text given to exec(), which dataclasses and named tuples use."""
    text = "from sf.cli.command import run_command; exit(run_command(lambda _: exec('raise KeyboardInterrupt')))"
    (tmp_path / "interrupted.py").write_text(text)
    command = [sys.executable, "-m", "interrupted"]
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == 130


def test_fault_e4_signal_between_the_death_of_a_worker_and_its_successor(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        wait_for_first_step(command)
        (victim,) = command.named("sf-rollout-0")
        victim.kill()
        command.wait_for_text("Restart 1 of rollout-0 follows")
        command.process.send_signal(signal.SIGTERM)
        done = command.finish(20)
    assert done.code == 143
    assert "Traceback" not in done.out + done.err
    expect_exact_ledger(tmp_path, done)


@pytest.mark.more
def test_fault_e4_signal_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    large = ("--encoder_mlp_layers", "1500", "1500", "--save_every_sec=1", "--batch_size=256", "--rollout=16")
    checkpoints = tmp_path / EXPERIMENT / "checkpoint_p0"

    def unfinished() -> list[Path]:
        return list(checkpoints.glob(".*"))

    with running(tmp_path, *CARTPOLE, *large) as command:
        command.wait_for(unfinished, "a checkpoint that is being written")
        command.process.send_signal(signal.SIGTERM)
        done = command.finish(20)
    assert done.code == 143
    assert "Traceback" not in done.out + done.err
    expect_exact_ledger(tmp_path, done)
    assert not unfinished()
    assert run(tmp_path, *CARTPOLE, *large, "--train_for_env_steps=1").code == 0, "the checkpoint is as good as any"
