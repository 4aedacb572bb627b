"""Signals: the first one stops a run in order, the second one at once (rows E1 to E5)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil
import pytest

from sf.processes.signals import STOP_SIGNALS, Signals
from sf.run import children
from sf.run.children import Processes
from sf.run.supervisor import train
from tests.helpers.commands import (
    CARTPOLE,
    ROOT,
    fault_run,
    newest_version,
    running,
    started,
    summary_of,
    wait_for_first_step,
    wait_for_more,
    wait_for_training,
)
from tests.helpers.lab import make_config

CLEAN = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH", "")]))}


def test_stacks_signal_to_the_whole_job_ends_nothing(tmp_path: Path) -> None:
    flags = "--env=CartPole-v1", "--serial_mode=True", "--train_for_env_steps=6000"
    with running(tmp_path, *flags) as command:
        wait_for_first_step(command)
        command.process.send_signal(signal.SIGUSR2)
        finished = command.finish()
    assert finished.code == 0, finished.err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGUSR1, 75)]
)
def test_fault_e1_e2_first_signal_saves_and_ends(tmp_path: Path, number: int, code: int) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        wait_for_first_step(command)
        for process in command.members():  # as a terminal does: to the whole group
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        finished = command.finish(20)
    assert finished.code == code, finished.err
    summary = summary_of(tmp_path)
    assert summary["exit_reason"].split(", ")[0] == f"stopped by {signal.Signals(number).name}"
    assert ("to be started again" in summary["exit_reason"]) == (code == 75)
    assert newest_version(tmp_path) == summary["policies"][0]["policy_version"]


def test_cx2_a_job_of_slurm_that_is_told_to_end_asks_for_a_requeue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with running(tmp_path, *CARTPOLE) as command:
        wait_for_first_step(command)
        command.process.terminate()
        assert command.finish(20).code == 75
    reason = "stopped by SIGTERM in a job of Slurm, to be started again"
    assert (summary_of(tmp_path)["exit_reason"], summary_of(tmp_path)["exit_code"]) == (reason, 75)


def test_fault_e1_environments_are_closed(tmp_path: Path) -> None:
    with running(tmp_path, *fault_run(tmp_path)[:-1]) as command:
        wait_for_training(command)
        workers = [one.pid for one in command.named("sf-rollout")]
        command.process.send_signal(signal.SIGTERM)
        assert command.finish(20).code == 143
    closed = [int(path.name.split("-")[1]) for path in (tmp_path / "orders").glob("closed-*")]
    assert sorted(pid for pid in closed if pid in workers) == sorted(workers * 4)


def test_fault_e3_second_signal_kills_at_once(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        wait_for_first_step(command)
        # A stopped child cannot follow the first signal, so that the run is still there for the second one.
        command.named("sf-rollout-0")[0].suspend()
        command.process.send_signal(signal.SIGINT)
        command.wait_for(lambda: not command.named("sf-learner"), "the first signal to be followed by who can")
        sent = time.monotonic()
        command.process.send_signal(signal.SIGINT)
        finished = command.finish(10)
        took_s = time.monotonic() - sent
    assert took_s < 2.5
    assert finished.code == 130
    assert "did not stop" not in finished.out + finished.err, "it was not waited for"


@pytest.mark.more
def test_fault_e3_e4_signals_that_keep_a_finished_run_from_saving_are_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had all its steps, and its learner was killed before it could save them."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    stop = Processes.stop

    def stop_in_vain(processes: Processes, signals: Signals) -> list[str]:
        (learner,) = (child for child in processes.children if child.name == "learner-0")
        os.kill(learner.pid, signal.SIGSTOP)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        return stop(processes, signals)

    monkeypatch.setattr(Processes, "stop", stop_in_vain)
    config = make_config(train_dir=str(tmp_path), train_for_env_steps=2000)
    try:
        outcome = train(config)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert outcome == (143, "stopped by SIGTERM")
    assert list((Path(config.run.experiment_dir) / "checkpoint_p0").iterdir()) == []


HANGUP, INTERRUPT, TERMINATE, SCHEDULER = signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1


@pytest.mark.parametrize(
    ("received", "is_urgent"),
    [
        ([HANGUP] * 5, False),
        ([INTERRUPT], False),
        ([HANGUP, HANGUP, TERMINATE], False),
        ([SCHEDULER, SCHEDULER, TERMINATE], False),
        ([INTERRUPT, INTERRUPT], True),
        ([TERMINATE, HANGUP, INTERRUPT], True),
        ([HANGUP, INTERRUPT, INTERRUPT], True),
    ],
)
def test_fault_e3_e5_only_somebody_who_asks_again_is_in_a_hurry(received: list[int], is_urgent: bool) -> None:
    signals = Signals(second_one_exits=False, parent=os.getpid())  # whose end counts as well
    for number in received:
        signals.note(number, None)
    assert signals.look_for_parent()
    assert signals.is_urgent == is_urgent
    assert signals.first == received[0]
    signals.close()


BIG = "--encoder_mlp_layers", "1500", "1500", "--batch_size=64", "--num_batches_per_epoch=1", "--num_epochs=1"
"""Whose last checkpoint takes a while, but not an optimizer step."""


def saved_whole(directory: Path) -> bool:
    """Whether the run in it has ended in order and saved its last step."""
    summary = summary_of(directory)
    return bool(
        summary["exit_reason"] == "stopped by SIGHUP"
        and newest_version(directory) == summary["policies"][0]["policy_version"] > 0
    )


def has_terminal() -> None:
    """Takes the standard input for its terminal, whose end it hears of, as a child of ``nohup`` does not."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.more
@pytest.mark.parametrize("end", ["", " &"])
def test_fault_e5_a_terminal_that_is_closed_below_an_interactive_shell_loses_nothing(tmp_path: Path, end: str) -> None:
    """The kernel, the shell and its end each tell the run, within a moment."""
    line = shlex.join([sys.executable, "-m", "sf.cli.train", *CARTPOLE, *BIG])
    terminal, shells_end = os.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "-i"], cwd=tmp_path, stdin=shells_end, stdout=shells_end, stderr=shells_end,
        start_new_session=True, preexec_fn=has_terminal, env=CLEAN,
    )  # fmt: skip
    os.close(shells_end)
    output = tmp_path / "out.txt"
    os.write(terminal, f"{line} > out.txt 2>&1{end}\n".encode())
    try:
        wait_for_text_in(output, "Fps is", terminal)
        os.close(terminal)
        assert shell.wait(30) is not None
        wait_for_text_in(output, "The run has ended")
        assert saved_whole(tmp_path)
    finally:
        shell.kill()
        shell.wait()


@pytest.mark.more
@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux (Debian: apt-get install tmux)")
def test_fault_e5_a_session_of_tmux_that_is_ended_loses_nothing(tmp_path: Path) -> None:
    line = shlex.join([sys.executable, "-m", "sf.cli.train", *CARTPOLE, *BIG])
    tmux = ["tmux", "-f", "/dev/null", "-S", str(tmp_path / "socket")]
    subprocess.run(
        [*tmux, "new-session", "-d", "-c", str(tmp_path), f"{line} > out.txt 2>&1"], check=True, env=CLEAN, timeout=30
    )
    try:
        wait_for_text_in(tmp_path / "out.txt", "Fps is")
    finally:
        subprocess.run([*tmux, "kill-server"], check=True, timeout=30)
    wait_for_text_in(tmp_path / "out.txt", "The run has ended")
    assert saved_whole(tmp_path)


def wait_for_text_in(path: Path, text: str, terminal: int | None = None) -> None:
    """Reads what comes on the terminal meanwhile, which would be full at some time."""
    deadline = time.monotonic() + 60
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, path.read_text() if path.exists() else "no output"
        if terminal is not None and select.select([terminal], [], [], 0.0)[0]:
            os.read(terminal, 4096)
        time.sleep(0.05)


@pytest.mark.more
def test_fault_e1_the_last_checkpoint_may_take_longer_than_the_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A tenth of a second here, of which writing 110 MB takes a multiple."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    monkeypatch.setattr(children, "STOP_GRACE_S", 0.1)
    config = make_config(
        train_dir=str(tmp_path), train_for_env_steps=64, encoder_mlp_layers=(3000, 3000), num_epochs=1, batch_size=64,
        num_batches_per_epoch=1, num_envs_per_worker=2, worker_num_splits=1, rollout=32, async_rl=False,
    )  # fmt: skip
    try:
        assert train(config).code == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    (saved,) = (Path(config.run.experiment_dir) / "checkpoint_p0").iterdir()
    assert saved.name.startswith("checkpoint_000000001")
    assert "writes its last checkpoint. Two Ctrl-C would break it off." in capfd.readouterr().out


def test_fault_e3_storm_of_signals(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        wait_for_first_step(command)
        sent = time.monotonic()
        for _ in range(100):
            command.process.send_signal(signal.SIGTERM)
        finished = command.finish(10)
        took_s = time.monotonic() - sent
    assert took_s < 7
    assert finished.code == 143


@pytest.mark.more
@pytest.mark.parametrize(("ignored", "code"), [("INT", 130), ("INT HUP TERM", 143)])
def test_fault_e1_e2_signals_to_a_job_in_the_background_of_a_script(tmp_path: Path, ignored: str, code: int) -> None:
    """Where shells have their jobs ignore SIGINT, kill -INT is meant all the same, but with nohup."""
    line = shlex.join([sys.executable, "-m", "sf.cli.train", *CARTPOLE])
    with started(tmp_path, "bash", "-c", f"trap '' {ignored}; exec {line}") as command:
        wait_for_first_step(command)
        command.process.send_signal(signal.SIGINT)
        if code == 143:
            wait_for_more(command)
            command.process.send_signal(signal.SIGTERM)
        finished = command.finish(20)
    assert finished.code == code
    assert newest_version(tmp_path) == summary_of(tmp_path)["policies"][0]["policy_version"]


def test_fault_e1_a_package_that_takes_the_handlers_of_a_serial_run(tmp_path: Path) -> None:
    """An environment installs its own in every reset; Ctrl-C saves all the same, and a line says so once."""
    flags = "--env=tests.environments.toys:Grabbing-v0", "--serial_mode=True", "--train_for_env_steps=100000000"
    with running(tmp_path, *flags) as command:
        command.wait_for_text("has taken the signals that stop a run")
        command.process.send_signal(signal.SIGINT)
        finished = command.finish(20)
    assert finished.code == 130, finished.err
    assert newest_version(tmp_path) == summary_of(tmp_path)["policies"][0]["policy_version"]
    assert finished.out.count("has taken the signals that stop a run") == 1


def test_cx2_a_launcher_that_repeats_a_signal_does_not_kill_a_run_that_saves() -> None:
    signals = Signals(second_one_exits=False, parent=None, has_launcher=True)
    for _ in range(3):
        signals.note(signal.SIGTERM, None)
    assert signals.first is signal.SIGTERM
    assert not signals.is_urgent
    signals.note(signal.SIGINT, None)
    assert signals.is_urgent, "a user insists"
    signals.close()
