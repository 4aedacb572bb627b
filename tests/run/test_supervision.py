"""What a supervisor sees and says of those it starts, at the beginning, in the middle and at the end."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sf.envs import find_env, probe_and_time
from sf.learner.update import Update
from sf.monitor import Monitor
from sf.processes.servers import ForkServers
from sf.processes.signals import Signals
from sf.processes.simulators import Simulators
from sf.run.callbacks import Callbacks
from sf.run.children import Processes
from sf.run.session import Session
from sf.run.supervisor import train
from sf.shared.episodes import Episode, EpisodeRing
from sf.shared.messages import CheckpointSaved
from tests.helpers.commands import CARTPOLE, EXPERIMENT, TIMEOUT_S, Running, run, running, wait_for_new
from tests.helpers.lab import make_config, make_lab


def test_what_looks_at_the_last_policy_is_no_time_of_training(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    session = Session(lab.config, lab.shared, Monitor(lab.config, tmp_path, 1), Callbacks())
    session.poll()
    session.stopped_s = time.monotonic()
    time.sleep(0.3)
    session.read_last()
    session.finish("tested", 0)
    assert 0.0 <= json.loads((tmp_path / "summary.json").read_text())["wall_time_s"] < 0.3


def test_episodes_of_a_resumed_run_are_recalled_in_the_order_in_which_they_ended(tmp_path: Path) -> None:
    """Where workers had rings of their own, those of the first one, which all share now, are the newest."""
    lab = make_lab(tmp_path, num_workers=2)
    for ring, reward, count in (1, 1.0, 150), (0, 500.0, 10_000):
        for _ in range(count):
            EpisodeRing(lab.arena, ring).append(Episode(0, reward, 10, reward))
    session = Session(lab.config, lab.shared, Monitor(lab.config, tmp_path, 1), Callbacks())
    session.recall_episodes()
    assert session.monitor.episodes.mean_rewards() == {0: 500.0}
    assert session.faults()["faults/unread_episodes"] == 0


def test_fault_a10_watchdog_that_cannot_be_replaced_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_lab(tmp_path)
    with ForkServers() as servers:
        processes = Processes(lab.shared, lab.config.faults, servers)
        servers.simulators = simulators = Simulators()
        simulators._watchdog.kill()
        simulators._watchdog.wait()
        signals = Signals(second_one_exits=False, parent=None)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(Simulators, "_new_watchdog", lambda _: _raise(BlockingIOError(errno.EAGAIN, "none left")))
                for _ in range(2):
                    processes.next_look_s = 0.0
                    processes.advance(0.0, signals)
            assert capsys.readouterr().out.count("no other one can be started now ([Errno 11] none left)") == 1
            processes.next_look_s = 0.0
            processes.advance(0.0, signals)
            assert capsys.readouterr().out == ""
            assert simulators._watchdog.poll() is None
        finally:
            signals.close()


def test_fault_b1_what_a_dead_child_has_told_is_there_before_its_successor(tmp_path: Path) -> None:
    """Its last report cannot be taken for one of the successor, and is not left lying until the clock is looked at."""
    lab = make_lab(tmp_path)
    signals = Signals(second_one_exits=False, parent=None)
    with ForkServers() as servers:
        processes = Processes(lab.shared, lab.config.faults, servers)
        processes.start([spec for spec in lab.specs if spec.kind == "rollout"][:1])
        (place,) = processes.places
        try:
            advance_until(lambda: processes.is_ready, processes, signals)
            first = place.child
            assert first is not None
            place.work_before = -1  # one that has delivered is replaced at once
            os.kill(first.pid, signal.SIGKILL)
            advance_until(lambda: place.child is not first, processes, signals)
            assert place.child is None, "no successor before the caller had a look at the messages"
            assert processes.has_news
            processes.advance(0.0, signals)
            assert place.child is not None
            assert place.child.pid != first.pid
        finally:
            processes.stop(signals)
            signals.close()


def advance_until(done: Callable[[], bool], processes: Processes, signals: Signals) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not done():
        assert time.monotonic() < deadline_s
        processes.advance(1.0, signals)


def _raise(error: BaseException) -> NoReturn:
    raise error


def test_fault_d2_best_checkpoint_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    """Although no mean was better since; one that is on disk is not written again."""
    lab = make_lab(tmp_path, save_every_sec=10, save_best_every_sec=1)
    saved: list[str] = []
    callbacks = Callbacks(on_checkpoint=lambda one: saved.append(one.kind))

    def take_messages() -> list[Any]:
        found, lab.told[:] = lab.told.copy(), []
        return found

    session = Session(lab.config, lab.shared, Monitor(lab.config, tmp_path, 1), callbacks, take_messages)
    rows = lab.shared.topology.num_groups * lab.shared.topology.rows
    for number in range(200):
        EpisodeRing(lab.arena, 0).append(Episode(0, 5.0, 10, 5.0, row=number % rows))
    learner = lab.build("learner-0")
    in_its_place = learner.saver.directory / "best"
    in_its_place.touch()
    session.poll()
    start_s = time.monotonic()
    for second in range(25):
        session._request_saves(start_s + second)
        learner.step()
        session.poll()
        if second == 5:
            in_its_place.unlink()
    assert saved == ["periodic", "best", "periodic"]


def test_fault_d2_age_of_the_checkpoint_that_is_resumed_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the run has begun, then since the last one that is on disk; best ones do not count."""
    lab, clock = make_lab(tmp_path), [1000.0]
    session = Session(lab.config, lab.shared, Monitor(lab.config, tmp_path, 1), Callbacks())
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    session.poll()
    ages = []
    for message in (
        None, CheckpointSaved(0, "periodic", "", 1, "no room"), CheckpointSaved(0, "best", "", 2),
        CheckpointSaved(0, "periodic", "", 3), None,
    ):  # fmt: skip
        clock[0] += 5.0
        session.take([] if message is None else [message])
        ages.append(session.faults()["faults/checkpoint_age"])
    assert ages == [5.0, 10.0, 15.0, 0.0, 5.0]


@pytest.mark.more
@pytest.mark.parametrize("kind", ["best", "milestones", "pool"])
def test_fault_d4_run_goes_on_from_what_there_is(tmp_path: Path, kind: str) -> None:
    assert run(tmp_path, *CARTPOLE, "--train_for_env_steps=2000").code == 0
    checkpoints = tmp_path / EXPERIMENT / "checkpoint_p0"
    (newest,) = checkpoints.glob("checkpoint_*")
    shutil.rmtree(checkpoints / "best", ignore_errors=True)  # one may be there, after a hundred episodes
    (checkpoints / kind).mkdir()
    newest.rename(checkpoints / kind / newest.name)
    resumed = run(tmp_path, *CARTPOLE, "--train_for_env_steps=4000")
    assert resumed.code == 0, resumed.err
    assert f"Resumed from {checkpoints / kind / newest.name} (policy_version" in resumed.out
    summary = json.loads((tmp_path / EXPERIMENT / "summary.json").read_text())
    assert 4000 <= summary["frames"] < 2 * 4000
    assert summary["new_frames"] < summary["frames"] - 1500


class Poisoned(RuntimeError):
    pass


@pytest.mark.more
@pytest.mark.parametrize("async_rl", [False, True])
def test_serial_run_that_fails_within_an_iteration_goes_on_from_before_it(
    tmp_path: Path, async_rl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"serial_mode": True, "num_envs_per_worker": 8, "rollout": 16, "async_rl": async_rl}
    settings |= {"num_batches_per_epoch": 2, "batch_size": 64, "train_dir": str(tmp_path)}
    train(make_config(train_for_env_steps=1000, **settings))
    right = Update._step

    def fails_in_the_middle(update: Update, *arguments: Any) -> bool:
        if update.version % 2 == 1 and update.version > 30:
            raise Poisoned("in the middle of a dataset")
        return right(update, *arguments)

    longer = make_config(train_for_env_steps=5000, train_for_seconds=60, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(Update, "_step", fails_in_the_middle)
        with pytest.raises(Poisoned):
            train(longer)
    frames: list[int] = []
    train(longer, Callbacks(on_iteration=lambda iteration: frames.append(iteration.frames)))
    assert frames[-1] >= 5000


@pytest.mark.alone
def test_fault_b5_first_look_sees_a_death_behind_a_fork(tmp_path: Path) -> None:
    began = time.monotonic()
    finished = run(tmp_path, "--env=tests.environments.fault:ForksAndDies-v0")
    assert finished.code == 3, finished.err
    assert "its process was killed by SIGABRT" in finished.err
    assert time.monotonic() - began < 10


def test_fault_b4_first_look_is_over_where_a_later_step_raises(tmp_path: Path) -> None:
    """As a worker of the run may, which is replaced."""
    (tmp_path / "step-always-raise").touch()
    look = probe_and_time(find_env("tests.environments.fault:Fault-v0", {"orders": str(tmp_path)}), 60.0)
    (note,) = look.notes
    assert note.startswith("Warning: in step 41 of the first look, Fault-v0 raised ValueError in step")
    assert look.step_time.wall_s > 0


@pytest.mark.more
def test_fault_a6_evaluations_are_the_work_of_an_evaluator(tmp_path: Path) -> None:
    """One that has delivered is replaced at once, however often."""
    with running(tmp_path, *CARTPOLE, "--eval_every_steps=500", "--eval_episodes=2", "--eval_share=1") as command:
        for restart in (1, 2):
            wait_for_evaluation(command)
            (evaluator,) = command.named("sf-eval-0")
            evaluator.kill()
            command.wait_for_text(f"Restart {restart} of eval-0 follows.")
            wait_for_new(command, "sf-eval-0", evaluator.pid)
        command.process.terminate()
        assert command.finish().code == 143


def wait_for_evaluation(command: Running) -> None:
    """A new one."""
    done = command.out.count("Evaluation of policy 0")
    command.wait_for(lambda: command.out.count("Evaluation of policy 0") > done, "an evaluation")
