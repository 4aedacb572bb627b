"""The end of a run: who is waited for, who is killed, and what is said of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch import Tensor, nn

from sf.errors import InternalError
from sf.learner.worker import Learner
from sf.processes.child import Child, spawned
from sf.processes.servers import ForkServers
from sf.processes.signals import Signals
from sf.run import children
from sf.run.children import Processes
from sf.run.preparation import prepare
from sf.run.supervisor import train, train_prepared
from sf.run.wiring import Shared
from sf.shared.role import RoleSpec
from tests.helpers.commands import (
    CARTPOLE,
    EXPERIMENT,
    command_of,
    run,
    running,
    start_slowly,
)
from tests.helpers.lab import make_config


@pytest.mark.more
def test_fault_a8_learner_killed_while_the_run_ends_is_told(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        command.wait_for_text("Fps is")
        (learner,) = command.named("sf-learner")
        learner.suspend()
        command.process.terminate()
        command.wait_for(lambda: not command.named("sf-rollout"), "the others to end")
        learner.kill()
        finished = command.finish()
    assert finished.code == 7
    assert re.search(r"learner-0 \(pid \d+\) was killed by SIGKILL without being told to", finished.err)
    summary = json.loads((tmp_path / EXPERIMENT / "summary.json").read_text())
    assert summary["exit_code"] == 7


@pytest.mark.more
@pytest.mark.parametrize("ends", ["while stacks are shown", "before it is killed"])
def test_fault_e1_e2_whoever_ends_by_itself_in_the_last_moment_was_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ends: str
) -> None:
    """Nobody has any time to stop here, but while stacks are shown, or right before the kill."""
    monkeypatch.setattr(children, "STOP_GRACE_S", 0.0)
    monkeypatch.setattr(children, "STACKS_GRACE_S", 0.0)
    show_stacks, work_of, stop = Processes._show_stacks, Processes._work_of, Processes.stop

    def wait_for_all(processes: Processes) -> None:
        for child in processes.children:
            assert child.has_ended(60.0)

    def show_stacks_and_wait(processes: Processes, hanging: Sequence[Child], why: str) -> None:
        show_stacks(processes, hanging, why)
        wait_for_all(processes)

    def work_of_late(processes: Processes, spec: RoleSpec) -> int:
        wait_for_all(processes)
        return work_of(processes, spec)

    def stop_late(processes: Processes, signals: Signals) -> list[str]:
        if ends == "while stacks are shown":
            monkeypatch.setattr(Processes, "_show_stacks", show_stacks_and_wait)
        else:
            monkeypatch.setattr(Processes, "_work_of", work_of_late)
        return stop(processes, signals)

    monkeypatch.setattr(Processes, "stop", stop_late)
    config = make_config(train_dir=str(tmp_path), train_for_env_steps=2000)
    assert train(replace(config, run=replace(config.run, serial_mode=False))).code == 0
    told = capfd.readouterr().out
    assert re.search(r"learner-0 \(pid \d+\) did not stop\. Its stacks follow\.", told)
    assert "was killed" not in told


class Endless(nn.Module):
    """An encoder that acts and cannot be trained: 64 rows at once take for ever, in a program that it starts."""

    def __init__(self, shapes: Any, config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        if len(inputs["obs"]) >= 64:
            subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"], check=True)
        features: Tensor = self.layer(inputs["obs"])
        return features


class Slow(nn.Module):
    """An encoder that acts at once and takes a twentieth of a second for 64 rows; it notes when it has done that often.

    The learner has made optimizer steps by then.
    """

    def __init__(self, shapes: Any, config: Any, note: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)
        self.note, self.times = Path(note), 0

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        if len(inputs["obs"]) >= 64:
            time.sleep(0.05)
            self.times += 1
            if self.times == 10:
                self.note.touch()
        features: Tensor = self.layer(inputs["obs"])
        return features


def interrupt_once_it_is_there(note: Path) -> None:
    deadline = time.monotonic() + 50
    while not note.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.more
def test_fault_e1_iteration_may_take_longer_than_the_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A tenth of a second here, of which an iteration of 40 optimizer steps takes a multiple."""
    monkeypatch.setattr(children, "STOP_GRACE_S", 0.1)
    note = tmp_path / "note"
    config = make_config(
        train_dir=str(tmp_path), encoder=f"{__name__}:{Slow.__name__}", encoder_kwargs=json.dumps({"note": str(note)}),
        train_for_seconds=60, num_epochs=40, batch_size=64, num_batches_per_epoch=1, num_envs_per_worker=2,
        worker_num_splits=1, rollout=32,
    )  # fmt: skip
    threading.Thread(target=interrupt_once_it_is_there, args=(note,), daemon=True).start()
    assert train(replace(config, run=replace(config.run, serial_mode=False))).code == 130
    (saved,) = (Path(config.run.experiment_dir) / "checkpoint_p0").glob("checkpoint_*")
    assert saved.name.startswith("checkpoint_000000040_")
    told = r"learner-0 \(pid \d+\) finishes its iteration and saves then\. Another Ctrl-C would break it off\."
    assert re.search(told, capfd.readouterr().out, re.I)


def sleepers() -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if "time.sleep(1000)" in command_of(one)]


def interrupt_when_it_sleeps() -> None:
    deadline = time.monotonic() + 50
    while not sleepers() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.more
def test_fault_a14_e1_learner_that_has_learned_nothing_may_be_killed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost with it, and what it has started ends as well."""
    monkeypatch.setattr(children, "STOP_GRACE_S", 1.0)
    encoder = f"{__name__}:{Endless.__name__}"
    config = make_config(train_dir=str(tmp_path), encoder=encoder, train_for_seconds=60)
    threading.Thread(target=interrupt_when_it_sleeps, daemon=True).start()
    assert train(replace(config, run=replace(config.run, serial_mode=False))).code == 130
    told = r"At the end: Learner-0 \(pid (\d+)\) did not stop and was killed\. Nothing that was learned is lost\."
    assert re.search(told, capfd.readouterr().out, re.I)
    assert not sleepers()


@pytest.mark.more
def test_fault_e4_who_has_not_begun_to_work_is_killed_like_all_that_do_not_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And not by the signal that asks for its stacks, which it does not know yet, as a program of its own."""
    start_slowly(tmp_path, 1000.0)
    monkeypatch.setattr(ForkServers, "may_begin_environments", True)
    monkeypatch.setattr(ForkServers, "begin_environments", lambda _, job: spawned(job))
    monkeypatch.setattr(children, "STOP_GRACE_S", 0.5)
    prepared = prepare(make_config(train_dir=str(tmp_path), serial_mode=False))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert train_prepared(prepared).code == 130
    told = r"At the end: rollout-0 \(pid \d+\) did not stop and was killed\. Nothing that was learned is lost\."
    assert re.search(told, capfd.readouterr().out)


def test_best_policy_is_saved_when_the_run_stops(tmp_path: Path) -> None:
    """Also where the next look for a better one is far away."""
    assert run(tmp_path, *CARTPOLE, "--stop_at_reward=25", "--save_best_every_sec=1000").code == 0
    (best,) = (tmp_path / EXPERIMENT / "checkpoint_p0" / "best").iterdir()
    assert json.loads((best / "state.json").read_text())["reward"] >= 25


def test_a_run_whose_books_do_not_balance_says_so_whatever_else_went_wrong(tmp_path: Path) -> None:
    """A learner that counts a slot twice, and then fails."""
    config = make_config(train_dir=str(tmp_path), train_for_env_steps=2000)
    prepared = prepare(replace(config, run=replace(config.run, serial_mode=True)))

    def change(shared: Shared, specs: list[RoleSpec]) -> list[RoleSpec]:
        def build(**arguments: Any) -> Learner:
            learner = Learner(**arguments)
            release = learner.source.release

            def count_too_much_and_fail(was_trained_on: bool = True) -> int:
                release(was_trained_on)
                shared.slots.released[0] += 1
                raise RuntimeError("something else")

            learner.source.release = count_too_much_and_fail  # type: ignore[method-assign]
            return learner

        return [replace(spec, factory=build) if spec.name == "learner-0" else spec for spec in specs]

    with pytest.raises(InternalError, match="slots are unaccounted for") as caught:
        train_prepared(prepared, change=change)
    assert "something else" in str(caught.value.__cause__)


@pytest.mark.more
def test_fault_d2_summary_has_the_code_of_the_command(tmp_path: Path) -> None:
    with running(tmp_path, *CARTPOLE) as command:
        command.wait_for_text("Fps is")
        (learner,) = command.named("sf-learner")
        learner.suspend()  # it may be writing the best policy right now
        checkpoints = tmp_path / EXPERIMENT / "checkpoint_p0"
        checkpoints.rename(tmp_path / "elsewhere")
        checkpoints.touch()  # where there should be a directory
        learner.resume()
        command.process.terminate()
        assert command.finish().code == 4
    summary = json.loads((tmp_path / EXPERIMENT / "summary.json").read_text())
    assert summary["exit_code"] == 4
    assert "final checkpoint was not written" in summary["exit_reason"]
